//! The listeners of a host.
//!
//! A listener stays until the host leaves, also when the front that has asked for it is gone: it
//! belongs to everybody who connects to it. It keeps no host: the host leaves when no client is
//! connected, whether through a front or a listener. An address that the host listens on already is
//! shared by all who ask for it with the same settings (so that each window of an editor can be
//! started with the same `--listen`); port 0 means any port, so one that was picked for it before.
//! The settings of the connections that come in are those of whoever asked first.
//!
//! Owns: which listeners there are, telling of them in the state folder and to an editor, and
//! ending them.
//! Never: decides who may ask, or what becomes of a host that cannot listen.

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

/// Maximum time that binding may take: the name of a host has to be looked up.
const BIND_WITHIN: Duration = Duration::from_secs(8);

/// All listeners of a host. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Listeners(Arc<Mutex<Registry>>);

#[derive(Debug, Default)]
struct Registry {
    /// Folder in which the addresses are told; `None` where there is no state folder.
    state_folder: Option<PathBuf>,
    listeners: Vec<ActiveListener>,
    posted: Option<PublishedFile>,
    announced: Vec<PublishedFile>,
    /// The host is leaving.
    is_closed: bool,
}

/// An address that is listened on.
#[derive(Debug)]
struct ActiveListener {
    /// The address that was asked for, perhaps with port 0.
    asked: Address,
    /// Address that is listened on, with the port that was picked.
    taken: Address,
    settings: Arc<Listening>,
    /// URL with the token, if there is one.
    url: String,
    /// URL for people, without a token that they know already.
    printed: String,
    task: JoinHandle<()>,
}

/// An address that was bound, and from which nobody is let in yet.
#[derive(Debug)]
struct BoundListener {
    asked: Address,
    taken: Address,
    url: String,
    listener: Listener,
}

impl Listeners {
    /// Begins with no listener. Those that come are told of in this folder.
    pub fn new(state_folder: Option<PathBuf>) -> Self {
        Self(Arc::new(Mutex::new(Registry { state_folder, ..Registry::default() })))
    }

    /// Listens on all these addresses, where the host does not yet, and lets clients in by this
    /// door, on these terms. Returns the URLs, as they are to be printed. Must be called inside a
    /// runtime.
    ///
    /// # Errors
    /// When one of the addresses cannot be listened on, or is with other settings; nothing is
    /// listened on then that was not before.
    pub async fn ask(
        &self,
        settings: Listening,
        acceptor: &ConnectionAcceptor,
        terms: &ConnectionSettings,
    ) -> anyhow::Result<Vec<String>> {
        // Whoever asks for the same address meanwhile is to find it.
        let mut registry = self.0.lock().await;
        if registry.is_closed {
            bail!("the host is leaving");
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

    /// Ends all listeners; when this returns, their addresses are free. Nobody can ask for one any
    /// more.
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

    /// Returns the listener on this address, if there is one.
    ///
    /// # Errors
    /// When it has other settings.
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

    /// Tells in the state folder of all listeners and of these.
    fn post(&mut self, bound: &[BoundListener]) -> std::io::Result<()> {
        let Some(folder) = &self.state_folder else { return Ok(()) };
        let urls = self.listeners.iter().map(|there| &there.url).chain(bound.iter().map(|new| &new.url));
        let listening = urls.cloned().collect();
        let put_up = ListenNotice { process: std::process::id(), listening }.publish(folder)?;
        if let Some(before) = self.posted.replace(put_up) {
            before.was_replaced();
        }
        Ok(())
    }
}

impl BoundListener {
    /// Binds an address.
    ///
    /// # Errors
    /// When that is not possible, or would let in the whole network without a token.
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

    /// Returns the URL for people: a token that they know already is not printed.
    fn printed(&self, settings: &Listening) -> String {
        if settings.token_is_known {
            self.taken.to_string()
        } else {
            self.url.clone()
        }
    }

    /// Lets clients in, in tasks of their own.
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
                #[cfg(unix)]
                Listener::Unix(listener) => listener.accept(&acceptor, &terms).await,
            }
        });
        ActiveListener { asked, taken, settings: Arc::clone(settings), url, printed, task }
    }
}

/// Tells an editor of the first new WebSocket listener, where that is asked for, until what is
/// returned is dropped.
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
    // It was announced when the host began to listen there.
    Ok(None)
}
