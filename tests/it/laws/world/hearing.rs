//! Outputs of the host of a schedule.
//!
//! Owns: feeding it, and what every single output must obey; passing it on to whoever it is for.
//! Never: lets out what is to be kept before it is kept.

use super::*;

impl World {
    /// Feeds the host, checks everything that comes out, and passes it on.
    pub(super) fn feed(&mut self, input: Input) -> Result<Seen> {
        let now = Now { unix_ms: self.unix_ms, monotonic_ms: self.monotonic_ms };
        let mut outputs = Vec::new();
        self.host.handle(now, &mut self.ids, input, &mut outputs);
        self.host.handle(now, &mut self.ids, Input::Save, &mut outputs);
        let mut seen = Seen::default();
        // What is to be kept is kept before anything goes out.
        for output in &outputs {
            if let Output::Record(record) = output {
                self.keep(record, &mut seen);
            }
        }
        for output in &outputs {
            self.take(output, &mut seen)?;
        }
        self.outputs.append(&mut outputs);
        for text in &self.shelved {
            text.evict();
        }
        for (seq, (channel, _)) in &seen.sequenced {
            let subscribed = self.connections.iter().filter(|(_, it)| it.subscribed.contains(channel));
            let due: BTreeSet<_> = subscribed.map(|(&connection, _)| connection).collect();
            let delivered = seen.delivered.remove(seq).unwrap_or_default();
            ensure!(delivered == due, "{seq} on {channel} went to {delivered:?}, not to {due:?}");
        }
        ensure!(seen.delivered.is_empty(), "delivered but not recorded: {:?}", seen.delivered);
        self.drop_removed()?;
        for uri in std::mem::take(&mut seen.created) {
            let held = ChannelMirror::new(self.observe(&uri)?);
            self.truth.add(uri, held);
        }
        Ok(seen)
    }

    pub(super) fn keep(&mut self, record: &Record, seen: &mut Seen) {
        match record {
            Record::Session(row) => {
                let is_new = self.sessions.insert(row.key, row.uri.clone()).is_none();
                if is_new {
                    seen.created.extend([row.uri.clone(), annotations_uri(&row.uri)]);
                }
            }
            Record::SessionRemoved(key) => {
                let its_own = self.chats.values().filter(|(session, _)| session == key);
                self.gone.extend(its_own.map(|(_, uri)| uri.clone()));
                self.chats.retain(|_, (session, _)| session != key);
                let uri = self.sessions.remove(key);
                self.gone.extend(uri.into_iter().flat_map(|uri| [annotations_uri(&uri), uri]));
            }
            Record::Chat(row) => {
                let is_new = self.chats.insert(row.key, (row.session, row.uri.clone())).is_none();
                seen.created.extend(is_new.then(|| row.uri.clone()));
            }
            Record::ChatRemoved { key, .. } => self.gone.extend(self.chats.remove(key).map(|(_, uri)| uri)),
            Record::Turn(_, _, turn) => {
                let shelf = Shelf(turn.text().to_vec());
                turn.place().set_source(Arc::new(shelf));
                self.shelved.push(turn.place().clone());
            }
            _ => {}
        }
        self.kept.keep(record.clone());
    }

    pub(super) fn take(&mut self, output: &Output, seen: &mut Seen) -> Result<()> {
        match output {
            Output::Frame(connection, frame) => self.take_frame(*connection, frame, seen)?,
            Output::Record(Record::Action(_, action)) => {
                let message = lines::parse(&action.line)?;
                let envelope = lines::read_sequenced(&message["params"])?;
                ensure!(envelope.server_seq == action.server_seq, "two numbers: {message}");
                self.truth.act(&envelope)?;
                seen.sequenced.insert(action.server_seq, (envelope.channel, action.line.clone()));
                seen.origins.extend(envelope.origin.map(|origin| (origin.client_id, origin.client_seq)));
            }
            Output::Record(_) => {}
            Output::States(connection, id, state) => {
                let frame = state.clone().answer(id.clone());
                let mut told = Vec::new();
                self.edges.translate_states(*connection, id.clone(), (**state).clone(), &mut told);
                self.check_lazy_write(*connection, told, &frame)?;
                self.take_frame(*connection, &frame, seen)?;
            }
            Output::Turns(connection, turns) => {
                let frame = Frame::Answer(turns.clone().line());
                let mut told = Vec::new();
                self.edges.translate_turns(*connection, (**turns).clone(), &mut told);
                self.check_lazy_write(*connection, told, &frame)?;
                self.take_frame(*connection, &frame, seen)?;
            }
            Output::List(connection, id, page) => {
                let listed = self.kept.list(page);
                let result = listing(&listed);
                let frame = Frame::result(id.clone(), Method::ListSessions, result);
                self.take_frame(*connection, &frame, seen)?;
            }
            Output::ExportLogs { .. } | Output::EndLogs(..) => {}
            // What agents are is told by their conversations here.
            Output::Probe { .. } => {}
            Output::Closed(connection) => {
                self.edges.close(*connection);
                ensure!(!self.connections.contains_key(connection), "{connection:?} is still there");
            }
            Output::AgentSessions(..) => ensure!(false, "no client asked for the sessions of an agent"),
            Output::Resource(..) => ensure!(false, "no client asked for a resource"),
            Output::Pty(..) => ensure!(false, "no client has a terminal"),
            Output::Git(..) | Output::Watch(_) => ensure!(false, "git is not asked"),
            Output::CheckDirectories(..) => ensure!(false, "automations are off"),
            Output::Unwatch(_) | Output::BeginWatches(_) => ensure!(false, "no client watches files"),
            Output::Agent(chat, command) => {
                let agent = self.agents.entry(*chat).or_default();
                agent.obey(command).with_context(|| format!("{chat:?}"))?;
                if let Some(bridged) = &mut self.bridged {
                    bridged.carry_out(*chat, (**command).clone());
                }
            }
            Output::Timer(timer, after) => {
                ensure!(*after > Duration::ZERO, "a timer that is due at once");
                self.timers.push(*timer);
            }
            Output::Disconnected { .. } => ensure!(false, "no client has ended its input"),
            Output::Done { cut } => self.done.push(*cut),
        }
        Ok(())
    }

    /// Checks that a lazily written message equals the one written at once.
    pub(super) fn check_lazy_write(
        &mut self,
        to: ConnectionId,
        told: Vec<Outgoing>,
        frame: &Frame,
    ) -> Result<()> {
        let in_pieces: Vec<Bytes> = told.into_iter().map(Outgoing::now).collect();
        let mut at_once = Vec::new();
        self.edges.down(to, frame, &mut at_once);
        ensure!(in_pieces == at_once, "{in_pieces:?} is not {at_once:?}");
        Ok(())
    }

    pub(super) fn take_frame(&mut self, to: ConnectionId, frame: &Frame, seen: &mut Seen) -> Result<()> {
        let connection = self.connections.get_mut(&to).context("a frame for nobody")?;
        let mut told = Vec::new();
        self.edges.translate_frame(to, frame, &mut told);
        ensure!(told.len() == 1, "a frame of the newest version is more than one message: {told:?}");
        let told = told.remove(0);
        let mut check = |action: &ActionLine, line: &Bytes| {
            ensure!(connection.sent < action.server_seq, "{} after {}", action.server_seq, connection.sent);
            connection.sent = action.server_seq;
            let known = seen.sequenced.get(&action.server_seq).is_some_and(|(_, known)| known == line);
            ensure!(known, "{} was sent before it was recorded, or as something else", action.server_seq);
            let first = seen.delivered.entry(action.server_seq).or_default().insert(to);
            ensure!(first, "{} was sent twice", action.server_seq);
            Ok(())
        };
        let now = self.begin + Duration::from_millis(self.monotonic_ms);
        if let Outgoing::Deltas(run, delay) = told {
            let expected = Frame::Deltas(run.clone(), delay.map(|delay| delay.as_millis() as u64));
            ensure!(*frame == expected, "{run:?} may be merged otherwise");
            run.actions().try_for_each(|action| check(&action, &action.line))?;
            match delay {
                Some(delay) => connection.outbox.push_within(run, delay, now),
                None => connection.outbox.push_deltas(run),
            }
            return Ok(());
        }
        let line = told.now();
        match frame {
            Frame::Action(action) => check(action, &line)?,
            Frame::Deltas(..) => ensure!(false, "deltas are not told as such"),
            Frame::Answer(_) => {
                let params = &lines::parse(&line)?["params"];
                ensure!(params["serverSeq"] == self.truth.head, "{params} while at {}", self.truth.head);
                if params["action"]["type"] == "chat/turnsLoaded" && params["rejectionReason"].is_null() {
                    let channel = params["channel"].as_str().unwrap_or_default();
                    ensure!(connection.subscribed.contains(channel), "loaded for nobody: {params}");
                    ensure!(seen.answers.is_empty() && params["origin"].is_null(), "{params}");
                    lines::read_sequenced(params)?;
                    self.loaded += 1;
                    connection.outbox.push(line);
                    return Ok(());
                }
                ensure!(params["origin"]["clientId"].as_str() == connection.client_id.as_deref(), "{params}");
                seen.acknowledged.push(params["action"].clone());
            }
            // For who has asked for it.
            Frame::Notification { method: "root/progress", .. } => {}
            Frame::Notification { .. } => {
                let has_returned =
                    connection.returns_to_root && seen.answers.iter().any(|(answered, _)| *answered == to);
                ensure!(
                    connection.subscribed.contains(ROOT_RESOURCE_URI) || has_returned,
                    "not subscribed to the root channel"
                );
            }
            Frame::Request { .. } => ensure!(false, "no client serves anything: {line:?}"),
            Frame::Result { .. } | Frame::Error { .. } => seen.answers.push((to, lines::parse(&line)?)),
        }
        connection.outbox.push(line);
        Ok(())
    }

    /// Forgets sessions and chats that are gone, and mentions it to those who followed them.
    pub(super) fn drop_removed(&mut self) -> Result<()> {
        let gone = std::mem::take(&mut self.gone);
        gone.iter().try_for_each(|channel| self.truth.remove(channel))?;
        for (&number, connection) in self.connections.iter_mut().filter(|_| !gone.is_empty()) {
            connection.subscribed.retain(|channel| !gone.contains(channel));
            if let Some(client) = self.clients.iter().find(|client| client.connection == Some(number)) {
                let mention = format!("{} {}", client.mirror.last_request, gone.join(" "));
                connection.outbox.push([GONE, mention.as_bytes()].concat().into());
            }
        }
        Ok(())
    }
}
