//! Listeners of a host.
//!
//! A listener stays until the host exits, even if the front that requested it is gone, since all
//! clients may use it. Listeners do not keep the host running: the host exits when no client is
//! connected, through a front or a listener. Requests for an address that is already listened on
//! share its listener if their settings are equal, so that each window of an editor can be started
//! with the same `--listen`. Port 0 matches a port that was picked for an earlier request. New
//! connections get the settings of the first request.
//!
//! Owns: the active listeners, their publication in the state folder and to an editor, and closing
//! them.
//! Never: decides who may request a listener, or handles a host that cannot listen.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{bail, Context};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use super::access::AccessToken;
use super::address::{Address, Listener};
use super::announce;
use super::notice::{ListenNotice, PublishedFile};
use super::{accept_clients, Listening};
use crate::io::link::{ConnectionAcceptor, ConnectionSettings};

/// Timeout of binding, which may include a name lookup.
const BIND_WITHIN: Duration = Duration::from_secs(8);

/// Listeners of a host. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Listeners(Arc<Mutex<Registry>>);

#[derive(Debug, Default)]
struct Registry {
    /// Folder in which the addresses are published; `None` without a state folder.
    state_folder: Option<PathBuf>,
    listeners: Vec<ActiveListener>,
    posted: Option<PublishedFile>,
    announced: Vec<PublishedFile>,
    /// Set while the host is leaving.
    is_closed: bool,
}

#[derive(Debug)]
struct ActiveListener {
    /// Requested address, perhaps with port 0.
    asked: Address,
    /// Bound address, with the picked port.
    taken: Address,
    settings: Arc<Listening>,
    /// URL with the token, if there is one.
    url: String,
    /// URL for people, without a token that they know already.
    printed: String,
    task: JoinHandle<()>,
}

/// Bound address that does not accept clients yet.
#[derive(Debug)]
struct BoundListener {
    asked: Address,
    taken: Address,
    url: String,
    listener: Listener,
}

impl Listeners {
    /// Creates an empty registry. Listeners are published in `state_folder`, if there is one.
    pub fn new(state_folder: Option<PathBuf>) -> Self {
        Self(Arc::new(Mutex::new(Registry { state_folder, ..Registry::default() })))
    }

    /// Listens on the addresses of `settings` that have no listener yet, and passes their clients
    /// to `acceptor` with the settings `terms`. Returns the URLs to print. Requires a runtime.
    ///
    /// # Errors
    /// When an address cannot be listened on or has other settings. Then no new listener is active.
    pub async fn ask(
        &self,
        settings: Listening,
        acceptor: &ConnectionAcceptor,
        terms: &ConnectionSettings,
    ) -> anyhow::Result<Vec<String>> {
        // Held while binding, so that a concurrent request for the same address finds the listener.
        let mut registry = self.0.lock().await;
        if registry.is_closed {
            bail!("the host is shutting down");
        }
        let settings = Arc::new(settings);
        let (mut urls, mut bound) = (Vec::new(), Vec::new());
        for address in &settings.addresses {
            if let Some(there) = registry.find(address, &settings)? {
                urls.push(there.printed.clone());
            } else {
                let new = BoundListener::bind(address, &settings).await?;
                urls.push(new.printed(&settings));
                bound.push(new);
            }
        }
        let announced = announce(&bound, &settings)?;
        if !bound.is_empty() {
            registry
                .post(&bound)
                .context("cannot write the addresses of the listeners into the state folder")?;
        }
        registry.listeners.extend(bound.into_iter().map(|bound| bound.begin(&settings, acceptor, terms)));
        registry.announced.extend(announced);
        Ok(urls)
    }

    /// Closes all listeners and refuses new ones. The addresses are free when this returns.
    pub async fn close(&self) {
        let mut registry = self.0.lock().await;
        registry.is_closed = true;
        for listener in std::mem::take(&mut registry.listeners) {
            listener.task.abort();
            if let Err(error) = listener.task.await {
                tracing::trace!(%error, "a listener has ended");
            }
        }
        registry.announced.clear();
        registry.posted = None;
    }
}

impl Registry {
    fn by_address(&self, address: &Address) -> Option<&ActiveListener> {
        self.listeners.iter().find(|there| there.asked == *address || there.taken == *address)
    }

    /// Returns the listener on this address, if any. Fails if it has other settings.
    fn find(&self, address: &Address, settings: &Listening) -> anyhow::Result<Option<&ActiveListener>> {
        let Some(there) = self.by_address(address) else { return Ok(None) };
        let differ = there.settings.differences(settings);
        if !differ.is_empty() {
            bail!(
                "cannot listen on {address}: the host already listens there with other settings ({})",
                differ.join(", ")
            );
        }
        Ok(Some(there))
    }

    /// Publishes the active listeners and `bound` in the state folder.
    fn post(&mut self, bound: &[BoundListener]) -> std::io::Result<()> {
        let Some(folder) = &self.state_folder else { return Ok(()) };
        let urls = self.listeners.iter().map(|there| &there.url).chain(bound.iter().map(|new| &new.url));
        let listening = urls.cloned().collect();
        self.posted = Some(ListenNotice { process: std::process::id(), listening }.publish(folder)?);
        Ok(())
    }
}

impl BoundListener {
    /// Binds an address. Refuses one that other machines can reach without a token.
    async fn bind(address: &Address, settings: &Listening) -> anyhow::Result<Self> {
        let cannot = || format!("cannot listen on {address}");
        let bound = tokio::time::timeout(BIND_WITHIN, address.bind()).await;
        let bound = bound.with_context(|| format!("{}: binding took too long", cannot()))?;
        let listener = bound.with_context(cannot)?;
        let local = listener.local_addr().with_context(cannot)?;
        let token = settings.access.token.as_ref().map(AccessToken::reveal);
        if token.is_none() && local.is_some_and(|local| !local.ip().is_loopback()) {
            bail!("{} without a token: other machines can reach it", cannot());
        }
        let (taken, url) = (address.with_port_of(local), address.url(local, token));
        Ok(Self { asked: address.clone(), taken, url, listener })
    }

    /// Returns the URL to print, without a token that the users know already.
    fn printed(&self, settings: &Listening) -> String {
        if settings.token_is_known {
            self.taken.to_string()
        } else {
            self.url.clone()
        }
    }

    fn begin(
        self,
        settings: &Arc<Listening>,
        acceptor: &ConnectionAcceptor,
        terms: &ConnectionSettings,
    ) -> ActiveListener {
        let printed = self.printed(settings);
        let Self { asked, taken, url, listener } = self;
        let terms = ConnectionSettings { returns_within: Some(settings.returns_within), ..terms.clone() };
        let (acceptor, address, accepted) = (acceptor.clone(), asked.clone(), Arc::clone(settings));
        let task = tokio::spawn(async move {
            match listener {
                Listener::Tcp(listener) => {
                    accept_clients(listener, &address, &acceptor, &terms, &accepted).await
                }
                Listener::Unix(listener) => listener.accept(&acceptor, &terms).await,
            }
        });
        ActiveListener { asked, taken, settings: Arc::clone(settings), url, printed, task }
    }
}

/// Announces the first new WebSocket listener, if requested, until the result is dropped.
fn announce(bound: &[BoundListener], settings: &Listening) -> anyhow::Result<Option<PublishedFile>> {
    let (Some(user_data), Some(token)) = (&settings.announced_in, &settings.access.token) else {
        return Ok(None);
    };
    if !settings.addresses.iter().any(|address| matches!(address, Address::WebSocket { .. })) {
        bail!("cannot announce the listener: Visual Studio Code connects to ws:// only");
    }
    for new in bound {
        if let Some(at) = new.listener.local_addr()? {
            let announced = announce::announce(user_data, at, token.reveal());
            let announced = announced
                .with_context(|| format!("cannot announce the listener in `{}`", user_data.display()));
            return announced.map(Some);
        }
    }
    // The listener was announced when the host began to listen there.
    Ok(None)
}
