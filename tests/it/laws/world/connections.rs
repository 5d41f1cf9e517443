//! The connections of a schedule's clients: opened, lost, taken up again, read and written.
//!
//! Owns: how a message reaches the host through a client's edge, and what one message may cause.
//! Never: says anything that no step asks for.

use super::*;

impl World {
    pub(super) fn open(&mut self, connection: ConnectionId) -> Result<()> {
        let merge_above = if self.merge { 0 } else { usize::MAX };
        let limits = OutboxLimits { merge_above, ..OutboxLimits::default() };
        let opened = Connection {
            outbox: Outbox::new(limits, self.backlog.clone()),
            subscribed: BTreeSet::new(),
            returns_to_root: false,
            client_id: None,
            sent: 0,
        };
        self.connections.insert(connection, opened);
        self.edges.open(connection, Some(Dialect::NEWEST));
        self.feed(Input::Opened { connection, default_directory: None }).map(|_| ())
    }

    /// The connection that a client has, or a new one.
    pub(super) fn connect(&mut self, client: usize) -> Result<ConnectionId> {
        if let Some(connection) = self.clients[client].connection {
            return Ok(connection);
        }
        self.last_connection += 1;
        let connection = ConnectionId(self.last_connection);
        self.open(connection)?;
        self.clients[client].connection = Some(connection);
        Ok(connection)
    }

    pub(super) fn live(&self, client: usize) -> Option<ConnectionId> {
        self.clients[client].connection
    }

    pub(super) fn lose(&mut self, client: usize, heard: bool) -> Result<()> {
        let Some(connection) = self.clients[client].connection.take() else { return Ok(()) };
        self.clients[client].mirror.lose();
        if heard {
            self.connections.remove(&connection);
            self.feed(Input::Closed(connection))?;
        }
        Ok(())
    }

    pub(super) fn reconnect(&mut self, client: usize, cursor: Cursor, leave_out: u8) -> Result<()> {
        let connection = self.connect(client)?;
        let head = self.truth.head;
        let Client { id, mirror, .. } = &mut self.clients[client];
        if let Cursor::Stranger(number) = cursor {
            *id = format!("stranger-{client}-{}-{number}", mirror.last_request);
        }
        let seen = match cursor {
            Cursor::Own => mirror.cursor,
            Cursor::Older(by) => mirror.cursor - i64::from(by),
            Cursor::Beyond(by) => head + 1 + i64::from(by),
            Cursor::Stranger(number) => i64::from(number),
        };
        let held: Vec<String> = mirror.channels.keys().cloned().collect();
        let left = usize::from(leave_out).checked_sub(1).and_then(|at| held.get(at)).cloned();
        let kept: Vec<String> = held.into_iter().filter(|channel| Some(channel) != left.as_ref()).collect();
        let request_id = mirror.ask(Asked::Reconnect);
        mirror.keep(&kept, request_id);
        let params = json!({ "clientId": id, "lastSeenServerSeq": seen, "subscriptions": kept });
        let answer = self.say(connection, &request(request_id, "reconnect", params))?;
        let result = answer.map_err(|code| anyhow::anyhow!("reconnect failed: {code}"))?;
        let Line::Reconnected(result) = lines::read(&result, Some(&Asked::Reconnect))? else {
            unreachable!("read as such")
        };
        if matches!(cursor, Cursor::Beyond(_) | Cursor::Stranger(_)) || seen < 0 {
            let snapshot = matches!(result, ReconnectResult::Snapshot(_));
            ensure!(snapshot, "a cursor that means nothing here was continued from: {cursor:?}");
        }
        if kept.iter().any(|channel| channel == ROOT_RESOURCE_URI) {
            self.begin_list(client)?;
        }
        Ok(())
    }

    /// A client reads what waits for it.
    pub(super) fn read(&mut self, client: usize, bytes: usize) -> Result<()> {
        let Some(connection) = self.clients[client].connection else { return Ok(()) };
        let outbox = &mut self.connections.get_mut(&connection).context("no such connection")?.outbox;
        let now = self.begin + Duration::from_millis(self.monotonic_ms);
        if outbox.due().is_some_and(|due| due <= now) {
            outbox.release();
        }
        let lines = outbox.take(bytes);
        outbox.written(lines.iter().map(Bytes::len).sum());
        let mirror = &mut self.clients[client].mirror;
        for line in lines.iter().flat_map(split_lines) {
            match line.strip_prefix(GONE) {
                Some(gone) => {
                    let (request, channels) =
                        std::str::from_utf8(gone)?.split_once(' ').context("no mention")?;
                    mirror.forget_removed(&channels.split(' ').collect::<Vec<_>>(), request.parse()?);
                }
                None => {
                    let said = || format!("client {client} reads {}", String::from_utf8_lossy(&line));
                    mirror.hear(&line).with_context(said)?;
                }
            }
        }
        Ok(())
    }

    /// Says a request; returns its answer or the code of its error.
    pub(super) fn say(
        &mut self,
        connection: ConnectionId,
        request: &Value,
    ) -> Result<std::result::Result<Value, i64>> {
        if request["method"] == "reconnect" {
            // What follows from it at once is told by its answer, and what was missed besides
            // behind that.
            let wanted = request["params"]["subscriptions"].as_array();
            let to_root = wanted.is_some_and(|wanted| wanted.contains(&json!(ROOT_RESOURCE_URI)));
            let connection = self.connections.get_mut(&connection).context("no such connection")?;
            connection.subscribed.clear();
            connection.returns_to_root = to_root;
        }
        let seen = self.hear(connection, request.to_string())?;
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.returns_to_root = false;
        }
        ensure!(seen.origins.is_empty(), "an origin without a dispatch: {:?}", seen.origins);
        let [(to, answer)] = &seen.answers[..] else {
            anyhow::bail!("{request} was answered {:?}", seen.answers)
        };
        ensure!(*to == connection && answer["id"] == request["id"], "{request} was answered {answer}");
        Ok(match answer["error"]["code"].as_i64() {
            Some(code) => Err(code),
            None => {
                self.note_subscriptions(connection, request, answer)?;
                Ok(answer.clone())
            }
        })
    }

    /// Records the channels that the host must deliver from now on.
    pub(super) fn note_subscriptions(
        &mut self,
        connection: ConnectionId,
        request: &Value,
        answer: &Value,
    ) -> Result<()> {
        let there = |uri: &Value| {
            uri.as_str().filter(|uri| self.truth.channels.contains_key(*uri)).map(str::to_owned)
        };
        let all =
            |uris: &Value| uris.as_array().into_iter().flatten().filter_map(there).collect::<BTreeSet<_>>();
        let params = &request["params"];
        let (fresh, begins) = match request["method"].as_str() {
            Some("initialize") => (all(&params["initialSubscriptions"]), true),
            Some("reconnect") => (all(&params["subscriptions"]), true),
            Some("subscribe") => (there(&params["channel"]).into_iter().collect(), false),
            _ => return Ok(()),
        };
        let connection = self.connections.get_mut(&connection).context("no such connection")?;
        if begins {
            connection.subscribed.clear();
            connection.client_id = params["clientId"].as_str().map(str::to_owned);
        }
        connection.subscribed.extend(fresh);
        ensure!(answer["result"].is_object(), "{answer}");
        Ok(())
    }

    pub(super) fn notify(&mut self, connection: ConnectionId, method: &str, params: Value) -> Result<Seen> {
        if method == "unsubscribe" {
            let connection = self.connections.get_mut(&connection).context("no such connection")?;
            connection.subscribed.remove(params["channel"].as_str().unwrap_or_default());
        }
        let seen = self
            .hear(connection, json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string())?;
        ensure!(seen.answers.is_empty(), "{method} was answered {:?}", seen.answers);
        Ok(seen)
    }

    pub(super) fn hear(&mut self, connection: ConnectionId, line: String) -> Result<Seen> {
        let mut fed = Vec::new();
        let message = Incoming::parse(&line.into());
        let named = MessageReferences::of(&message).directories.into_iter();
        self.edges.up(connection, message, &mut fed);
        ensure!(fed.len() == 1, "a message of the newest version is more than one: {fed:?}");
        self.edges.take_records();
        let message = fed.remove(0);
        let there =
            |uri: &str| if uri == "file:///nowhere" { Err("is not there".to_owned()) } else { Ok(()) };
        let findings = named.map(|uri| (uri.clone(), there(&uri))).collect();
        let prefetched = Prefetched { findings, ..Prefetched::default() };
        self.feed(Input::Received { connection, message, prefetched: Some(Box::new(prefetched)) })
    }
}
