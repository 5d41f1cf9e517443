//! Messages to the driver's client from a host that may die at any moment.
//!
//! Owns: taking lines in as a client does, and what must be true of each.
//! Never: says anything.

use super::*;

impl Driver {
    pub(super) fn next_line(&mut self) -> Alive {
        let Some(line) = self.process.as_mut().unwrap().next_line() else {
            self.die();
            panic!("the output has ended");
        };
        self.hear(&line);
        if let Trigger::Heard(left) = &mut self.trigger {
            *left -= 1;
        }
        self.die_if_due()
    }

    /// Hears everything up to the answers to all that was asked.
    pub(super) fn listen(&mut self) -> Alive {
        while !self.asked.is_empty() {
            self.next_line()?;
        }
        Ok(())
    }

    pub(super) fn hear(&mut self, line: &str) {
        let message: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}"));
        if let Some(id) = message["id"].as_u64() {
            let request = self.asked.remove(&id).unwrap_or_else(|| panic!("nobody asked: {line}"));
            if let Some(error) = message.get("error") {
                // A queued message may have been taken up.
                let Request::MoveChat(chat, _) = &request else { panic!("{request:?}: {line}") };
                assert_eq!(error["code"], TURN_IN_PROGRESS, "{line}");
                self.unsure_chats.remove(chat);
                return;
            }
            return self.hear_answer(request, &message["result"]);
        }
        if message["method"] == "action" {
            let envelope: ActionEnvelope = serde_json::from_value(message["params"].clone()).unwrap();
            self.hear_action(&envelope);
        }
    }

    pub(super) fn hear_action(&mut self, envelope: &ActionEnvelope) {
        let mine = envelope.origin.as_ref().map(|origin| u64::try_from(origin.client_seq).unwrap());
        if let Some(number) = mine {
            self.unanswered.remove(&number);
        }
        if envelope.rejection_reason.is_some() {
            if mine.is_some_and(|number| self.must_be_refused.remove(&number)) {
                self.history.counts.started_again += 1;
            }
            return;
        }
        assert!(!mine.is_some_and(|number| self.must_be_refused.contains(&number)), "accepted: {envelope:?}");
        if let Some(client) = self.lagging.as_mut().filter(|_| self.lagging_is_live) {
            if client.states.contains_key(&envelope.channel) && envelope.server_seq > client.cursor {
                self.history.see(envelope);
                client.apply(envelope);
            }
        }
        if !self.is_live {
            return;
        }
        if envelope.server_seq <= self.mirrors.cursor {
            assert!(mine.is_some() || loads(envelope), "told twice on one connection: {envelope:?}");
            return;
        }
        self.history.see(envelope);
        self.mirrors.apply(envelope);
    }

    pub(super) fn hear_answer(&mut self, request: Request, result: &Value) {
        match request {
            Request::Ping | Request::Looker => {}
            Request::Initialize => {
                self.is_live = true;
                let opened: InitializeResult = serde_json::from_value(result.clone()).unwrap();
                opened.snapshots.into_iter().for_each(|snapshot| self.mirrors.put(snapshot));
            }
            Request::Reconnect { lost } => {
                let result: ReconnectResult = serde_json::from_value(result.clone()).unwrap();
                assert!(!lost || matches!(result, ReconnectResult::Snapshot(_)), "a replay from nowhere");
                self.is_live = true;
                self.receive_missed(result);
            }
            Request::Lagging => {
                let result: ReconnectResult = serde_json::from_value(result.clone()).unwrap();
                self.lagging_is_live = true;
                self.catch_up(result);
            }
            Request::Subscribe(uri) => {
                let subscribed: SubscribeResult = serde_json::from_value(result.clone()).unwrap();
                let snapshot = subscribed.snapshot.unwrap();
                assert_eq!(snapshot.resource, uri);
                match self.mirrors.states.get(&uri) {
                    Some(mirror) => {
                        let (mirror, state) = (masked(mirror), masked(&snapshot.state));
                        assert!(mirror == state, "{uri}: the mirror is\n{mirror}\nthe state is\n{state}");
                    }
                    None => {
                        if let SnapshotState::Chat(chat) = &snapshot.state {
                            self.history_of(&uri, chat, u64::try_from(snapshot.from_seq).unwrap());
                        }
                    }
                }
                if let SnapshotState::Chat(chat) = &snapshot.state {
                    check_chat(&uri, chat);
                }
                self.mirrors.put(snapshot);
            }
            Request::List => {
                let list: ListSessionsResult = serde_json::from_value(result.clone()).unwrap();
                self.listed =
                    list.items.into_iter().map(|session| (session.resource, session.status)).collect();
            }
            Request::Create(uri) => {
                self.unsure.remove(&uri);
                self.sessions.insert(uri);
            }
            Request::Dispose(uri) => self.is_gone(&uri),
            Request::OpenChat(chat, session) | Request::MoveChat(chat, session) => {
                self.unsure_chats.remove(&chat);
                self.chats.insert(chat, session);
            }
            Request::CloseChat(chat) => self.is_closed(&chat),
        }
    }

    pub(super) fn history_of(&mut self, uri: &str, chat: &ChatState, up_to: u64) {
        let running = chat.active_turn.as_ref().map(|turn| turn.id.as_str());
        let known = chat.turns.iter().map(|turn| turn.id.clone()).collect();
        self.history.skip(uri, up_to, running, known);
    }

    pub(super) fn is_gone(&mut self, session: &str) {
        self.unsure.remove(session);
        self.sessions.remove(session);
        self.disposed.insert(session.to_owned());
        self.mirrors.states.remove(session);
        self.mirrors.states.remove(&annotations_uri(session));
        self.mirrors.states.remove(&chat_of(session));
        // One that was to move may have gone before.
        let sure = |chat: &String| !self.unsure_chats.contains(chat);
        let of_it = self.chats.iter().filter(|(chat, of)| *of == session && sure(chat));
        for chat in of_it.map(|(chat, _)| chat.clone()).collect::<Vec<_>>() {
            self.is_closed(&chat);
        }
    }

    pub(super) fn is_closed(&mut self, chat: &str) {
        self.unsure_chats.remove(chat);
        self.chats.remove(chat);
        self.closed.insert(chat.to_owned());
        self.mirrors.states.remove(chat);
    }

    /// Tells whether the channel belongs to a session that may be gone.
    pub(super) fn may_be_disposed_of(&self, uri: &str) -> bool {
        let mut gone = self.unsure.iter().chain(&self.disposed);
        let session = self.chats.get(uri);
        self.unsure_chats.contains(uri)
            || self.closed.contains(uri)
            || gone.any(|gone| {
                gone == uri || chat_of(gone) == uri || annotations_uri(gone) == uri || Some(gone) == session
            })
    }

    /// The answer to a `reconnect` with what this client had.
    pub(super) fn receive_missed(&mut self, result: ReconnectResult) {
        match result {
            ReconnectResult::Replay(replay) => {
                self.history.counts.replays += 1;
                for uri in replay.missing {
                    assert!(self.may_be_disposed_of(&uri), "{uri} is missing");
                    self.mirrors.states.remove(&uri);
                }
                for envelope in &replay.actions {
                    let seen = self.mirrors.cursor;
                    let is_new = envelope.server_seq > seen || loads(envelope);
                    assert!(is_new, "replayed after {seen}: {envelope:?}");
                    self.hear_action(envelope);
                }
            }
            ReconnectResult::Snapshot(told) => {
                self.history.counts.snapshots += 1;
                let before = std::mem::take(&mut self.mirrors.states);
                for snapshot in told.snapshots {
                    let uri = snapshot.resource.clone();
                    if self.has_no_request_about(&uri) {
                        check_retained(&uri, &before[&uri], &snapshot.state);
                    }
                    if let SnapshotState::Chat(chat) = &snapshot.state {
                        self.history_of(&uri, chat, u64::try_from(snapshot.from_seq).unwrap());
                    }
                    self.mirrors.put(snapshot);
                }
                for uri in before.keys().filter(|uri| !self.mirrors.states.contains_key(*uri)) {
                    assert!(self.may_be_disposed_of(uri), "{uri} is missing");
                }
            }
        }
    }

    /// Tells whether no request about a channel, or about its session's chat, is in flight.
    pub(super) fn has_no_request_about(&self, uri: &str) -> bool {
        let of_its_chat = |channel: &String| *channel == uri || *channel == chat_of(uri);
        !self.unanswered.values().any(of_its_chat)
    }

    /// The answer to a `reconnect` as a client that has been away for longer: it must be told again
    /// what is known of the time since, and come to hold the same.
    pub(super) fn catch_up(&mut self, result: ReconnectResult) {
        let mut client = self.lagging.take().unwrap();
        match result {
            ReconnectResult::Replay(replay) => {
                self.history.counts.lagging += 1;
                for uri in &replay.missing {
                    assert!(self.may_be_disposed_of(uri), "{uri} is missing");
                    client.states.remove(uri);
                }
                let told: BTreeSet<u64> = replay.actions.iter().map(|action| action.server_seq).collect();
                let channels = client.uris().into_iter().collect();
                for number in self.history.numbers_after(client.cursor) {
                    let told = told.contains(&number) || !self.history.is_on(number, &channels);
                    assert!(told, "{number} was left out of a replay from {}", client.cursor);
                }
                for envelope in &replay.actions {
                    self.history.see(envelope);
                    client.apply(envelope);
                }
            }
            ReconnectResult::Snapshot(told) => {
                client.states.clear();
                told.snapshots.into_iter().for_each(|snapshot| client.put(snapshot));
            }
        }
        self.lagging = Some(client);
    }
}
