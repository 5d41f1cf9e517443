//! Requests and actions of the clients of a schedule.
//!
//! Owns: the message that each step stands for, and what a client expects of its answer.
//! Never: judges what others are told because of it.

use super::*;

impl World {
    pub(super) fn initialize(&mut self, client: usize, channels: u8) -> Result<()> {
        let again = self.clients[client].connection.is_some();
        let connection = self.connect(client)?;
        let wanted: BTreeSet<String> = (0..channels % 4).map(|index| self.channel(index)).collect();
        let Client { id, mirror, .. } = &mut self.clients[client];
        if !again {
            mirror.forget();
        }
        let request_id = mirror.ask(if again { Asked::Nothing } else { Asked::Initialize });
        if !again {
            wanted.iter().for_each(|channel| mirror.want(channel, request_id));
        }
        let params = json!({
            "channel": ROOT_RESOURCE_URI, "clientId": id, "protocolVersions": ["2.0.0", "1.0.0"],
            "initialSubscriptions": wanted,
        });
        let ok = self.say(connection, &request(request_id, "initialize", params))?.is_ok();
        ensure!(ok != again, "initialize answered {}", if ok { "twice" } else { "with an error" });
        if !again && wanted.contains(ROOT_RESOURCE_URI) {
            self.begin_list(client)?;
        }
        Ok(())
    }

    pub(super) fn subscribe(
        &mut self,
        client: usize,
        index: u8,
        turns: Option<u8>,
        delay: Option<u16>,
    ) -> Result<()> {
        let channel = self.channel(index);
        let there = self.truth.channels.contains_key(&channel);
        let Some(connection) = self.live(client) else { return Ok(()) };
        let mirror = &mut self.clients[client].mirror;
        let request_id = mirror.ask(Asked::Subscribe);
        if there {
            mirror.want(&channel, request_id);
        }
        let mut params = json!({ "channel": channel });
        if let Some(turns) = turns {
            params["view"] = json!({ "turns": turns });
        }
        if let Some(delay) = delay {
            params["delivery"] = json!({ "maxLatencyMs": delay });
        }
        match self.say(connection, &request(request_id, "subscribe", params))? {
            Ok(answer) => {
                ensure!(there, "subscribed to {channel}, which is not there");
                if let Some((_, chat)) = self.truth.chats().find(|(uri, _)| *uri == channel) {
                    let shown = answer["result"]["snapshot"]["state"]["turns"].as_array().map(Vec::len);
                    let wanted = turns.map_or(usize::MAX, |turns| usize::from(turns).max(1));
                    ensure!(shown == Some(wanted.min(chat.turns.len())), "{shown:?} of {wanted} turns");
                }
            }
            Err(code) => ensure!(!there && code == -32001, "subscribing to {channel} failed: {code}"),
        }
        if channel == ROOT_RESOURCE_URI {
            self.begin_list(client)?;
        }
        Ok(())
    }

    /// Loads older turns: they come before the answer, to nobody else.
    pub(super) fn fetch(&mut self, client: usize, index: u8, from: From) -> Result<()> {
        let Some(connection) = self.live(client) else { return Ok(()) };
        let chat = self.chat(index).unwrap_or_else(|| "ahp-session:/nobody's".to_owned());
        let mirror = &mut self.clients[client].mirror;
        let held = mirror.channels.get(&chat).and_then(|held| match &held.state {
            SnapshotState::Chat(chat) => chat.turns_next_cursor.clone(),
            _ => None,
        });
        let params = match (from, held) {
            (From::Elsewhere, _) => json!({ "channel": chat, "cursor": "elsewhere" }),
            (From::Own, Some(cursor)) => json!({ "channel": chat, "cursor": cursor }),
            (From::Own | From::Next, _) => json!({ "channel": chat }),
        };
        let request_id = mirror.ask(Asked::Fetch);
        let there = self.connections[&connection].subscribed.contains(&chat);
        let before = self.loaded;
        let answer = self.say(connection, &request(request_id, "fetchTurns", params.clone()))?;
        let loaded = self.loaded - before;
        match answer {
            Ok(_) => ensure!(there && loaded == 1, "{params} loaded {loaded} times"),
            // What the client holds may be of long ago.
            Err(_) => ensure!(loaded == 0 && !(there && params.get("cursor").is_none()), "refused: {params}"),
        }
        ensure!(answer.is_err() || !matches!(from, From::Elsewhere), "a foreign cursor was taken");
        Ok(())
    }

    pub(super) fn unsubscribe(&mut self, client: usize, index: u8) -> Result<()> {
        let channel = self.channel(index);
        let Some(connection) = self.live(client) else { return Ok(()) };
        self.clients[client].mirror.leave(&channel);
        self.notify(connection, "unsubscribe", json!({ "channel": channel }))?;
        Ok(())
    }

    /// Asks for the list, because the root channel has just begun to tell its changes.
    pub(super) fn begin_list(&mut self, client: usize) -> Result<()> {
        let Some(connection) = self.live(client) else { return Ok(()) };
        let mirror = &mut self.clients[client].mirror;
        let request_id = mirror.ask(Asked::List);
        mirror.list_from(request_id);
        let params = json!({ "channel": ROOT_RESOURCE_URI });
        ensure!(self.say(connection, &request(request_id, "listSessions", params))?.is_ok(), "no list");
        Ok(())
    }

    /// Asks for a page of the list, or with a foreign cursor.
    pub(super) fn list(&mut self, client: usize, limit: u8) -> Result<()> {
        let Some(connection) = self.live(client) else { return Ok(()) };
        let request_id = self.clients[client].mirror.ask(Asked::List);
        let params = if limit == 15 { json!({ "cursor": "x" }) } else { json!({ "limit": limit % 4 }) };
        let answer = self.say(connection, &request(request_id, "listSessions", params))?;
        ensure!(
            answer.is_ok() == (limit != 15 && !limit.is_multiple_of(4)),
            "a page of {limit} got {answer:?}"
        );
        Ok(())
    }

    pub(super) fn create(&mut self, client: usize, name: u8, how: u8) -> Result<()> {
        let Some(connection) = self.live(client) else { return Ok(()) };
        let name = NAMES[usize::from(name) % NAMES.len()];
        let request_id = self.clients[client].mirror.ask(Asked::Nothing);
        let mut params = json!({ "channel": name });
        let more = match how {
            0..=2 => json!({}),
            3 => json!({ "provider": "script", "workingDirectories": ["file:///tmp"] }),
            4 => json!({ "provider": "nobody" }),
            5 => json!({ "config": { "fail": 5 } }),
            7 => json!({ "activeClient": speech::participant("nobody", 1) }),
            8..=11 => json!({ "activeClient": speech::participant(&self.clients[client].id, how) }),
            6 => json!({ "workingDirectories": ["file:///a", "file:///nowhere"] }),
            13..=15 => json!({ "progressToken": format!("{}-{request_id}", self.clients[client].id) }),
            12 => json!({ "workingDirectories": ["file:///a", "file:///b", "file:///a/"] }),
            // A program says what can be set in its sessions, and that is nothing.
            _ if self.bridged.is_some() => json!({ "config": {} }),
            _ => json!({ "config": { "openMs": 5 } }),
        };
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let good = !self.truth.sessions.iter().any(|known| known == name)
            && !matches!(how, 4 | 6 | 7)
            && !matches!(name, "ahp-chat:/1" | "nonsense");
        let answer = self.say(connection, &request(request_id, "createSession", params))?;
        ensure!(answer.is_ok() == good, "creating {name} was answered {answer:?}");
        Ok(())
    }

    pub(super) fn dispose(&mut self, client: usize, index: u8) -> Result<()> {
        let Some(connection) = self.live(client) else { return Ok(()) };
        // One that is not there is gone already.
        let name = self.session(index).unwrap_or_else(|| "ahp-session:/nobody's".to_owned());
        let request_id = self.clients[client].mirror.ask(Asked::Nothing);
        let answer =
            self.say(connection, &request(request_id, "disposeSession", json!({ "channel": name })))?;
        ensure!(answer.is_ok(), "disposing of {name} was answered {answer:?}");
        ensure!(self.truth.session(&name).is_none(), "{name} was disposed of and is there");
        Ok(())
    }

    pub(super) fn open_chat(
        &mut self,
        client: usize,
        session: u8,
        name: u8,
        how: (u8, u8, u8),
    ) -> Result<()> {
        let (Some(connection), Some(session)) = (self.live(client), self.session(session)) else {
            return Ok(());
        };
        let name = CHATS[usize::from(name) % CHATS.len()];
        let (how, from, turn) = how;
        let from = self.chat(from).context("a session has a chat")?;
        let source = self.truth.chat(&from).context("a chat that is there")?;
        let running = source.active_turn.as_ref().map(|turn| turn.id.as_str());
        let over = || source.turns.iter().rev().map(|turn| turn.id.as_str());
        let turn = speech::pick(turn, over().chain(running));
        let is_over = over().any(|id| id == turn);
        let mut params = json!({ "channel": session, "chat": name });
        let ours = self.truth.session_of(&from) == Some(session.as_str());
        let fits = match how % 6 {
            0 | 1 => true,
            2 => {
                params["source"] = json!({ "kind": "fork", "chat": from, "turnId": turn });
                ours && is_over
            }
            3 => {
                params["source"] = json!({ "kind": "sideChat", "chat": from, "turnId": turn });
                ours && (is_over || running == Some(turn.as_str()))
            }
            4 => {
                params["workingDirectories"] = json!(["file:///tmp"]);
                false
            }
            _ => {
                params["source"] = json!({ "kind": "cutting", "chat": from, "turnId": turn });
                false
            }
        };
        let copied = source.turns.iter().position(|it| it.id == turn).map_or(0, |at| at + 1);
        let copied = source.turns[..if how % 6 == 2 { copied } else { 0 }].to_vec();
        let begins = how % 4 == 1;
        if begins {
            params["initialMessage"] = speech::message_of(how);
        }
        let failed = |state: &SessionState| state.lifecycle == SessionLifecycle::Failed;
        let good = fits
            && !self.truth.session(&session).is_some_and(failed)
            && !self.truth.channels.contains_key(name)
            // Its message has annotations of this session attached.
            && (how != 13 || self.truth.channels.contains_key("ahp-session:/1/annotations"))
            && name.starts_with("ahp-chat:/")
            && !name.starts_with("ahp-chat://default/");
        let request_id = self.clients[client].mirror.ask(Asked::Nothing);
        let answer = self.say(connection, &request(request_id, "createChat", params.clone()))?;
        ensure!(answer.is_ok() == good, "{params} was answered {answer:?}");
        if good {
            let chat = self.truth.chat(name).context("no chat came into being")?;
            ensure!(chat.turns == copied, "{params} shows {:?}", chat.turns);
            ensure!(chat.active_turn.is_some() == begins, "{params} runs {:?}", chat.active_turn);
        }
        Ok(())
    }

    pub(super) fn close_chat(&mut self, client: usize, chat: u8) -> Result<()> {
        let (Some(connection), Some(chat)) = (self.live(client), self.chat(chat)) else { return Ok(()) };
        let session = self.truth.session_of(&chat).and_then(|session| self.truth.session(session));
        let good = session.is_some_and(|session| session.chats.len() > 1);
        let request_id = self.clients[client].mirror.ask(Asked::Nothing);
        let params = json!({ "channel": chat });
        let answer = self.say(connection, &request(request_id, "disposeChat", params))?;
        ensure!(answer.is_ok() == good, "disposing of {chat} was answered {answer:?}");
        Ok(())
    }

    pub(super) fn move_chat(&mut self, client: usize, chat: u8, to: u8, after: Option<u8>) -> Result<()> {
        let (Some(connection), Some(chat)) = (self.live(client), self.chat(chat)) else { return Ok(()) };
        let state = self.truth.chat(&chat).context("a chat that is there")?;
        let from = self.truth.session_of(&chat).context("a chat of no session")?.to_owned();
        let after = after.and_then(|after| self.chat(after));
        let failed = |session: &str| {
            self.truth.session(session).is_none_or(|it| it.lifecycle == SessionLifecycle::Failed)
        };
        let lists = |session: &str, chat: &String| {
            self.truth.session(session).is_some_and(|it| it.chats.iter().any(|row| row.resource == *chat))
        };
        let (destination, fits) = match (to % 4, self.session(to / 4)) {
            (0, _) => (json!({ "kind": "newSession" }), state.active_turn.is_none() && !failed(&from)),
            (_, None) => (json!({ "kind": "session", "session": "ahp-session:/nobody's" }), false),
            (_, Some(session)) => {
                let anchored = after.as_ref().is_none_or(|after| *after != chat && lists(&session, after));
                let joins = session == from || (state.active_turn.is_none() && !failed(&session));
                (json!({ "kind": "session", "session": session, "after": after }), anchored && joins)
            }
        };
        let good = fits && state.movable == Some(true);
        let notes = |session: &str, world: &Self| {
            let meta = world.truth.session(session).and_then(|it| it.meta.clone()).unwrap_or_default();
            let of_chat = meta.into_iter().map(|(name, by_chat)| (name, by_chat[&chat].clone()));
            of_chat.filter(|(_, note)| !note.is_null()).collect::<Vec<_>>()
        };
        let noted = notes(&from, self);
        let request_id = self.clients[client].mirror.ask(Asked::Move);
        let params = json!({ "channel": chat, "destination": destination });
        let answer = self.say(connection, &request(request_id, "moveChat", params.clone()))?;
        ensure!(answer.is_ok() == good, "{params} was answered {answer:?}");
        if let Ok(answer) = answer {
            let session = self.truth.session_of(&chat);
            ensure!(answer["result"]["session"].as_str() == session, "{params} was answered {answer}");
            ensure!(notes(session.unwrap_or_default(), self) == noted, "{params} left {noted:?} behind");
        }
        Ok(())
    }

    /// Asks for a change: it is sequenced once, or answered once, or its channel is not there.
    pub(super) fn dispatch(
        &mut self,
        client: usize,
        channel: &str,
        action: Value,
        wish: &Wish,
    ) -> Result<()> {
        let Some(connection) = self.live(client) else { return Ok(()) };
        let Client { id, last_seq, .. } = &mut self.clients[client];
        *last_seq += 1;
        let origin = (id.clone(), *last_seq);
        let params = json!({ "channel": channel, "clientSeq": origin.1, "action": &action });
        let seen = self.notify(connection, "dispatchAction", params)?;
        let there = self.truth.channels.contains_key(channel);
        let sequenced = seen.origins.iter().filter(|it| **it == origin).count();
        ensure!(sequenced == seen.origins.len(), "an origin of somebody else: {:?}", seen.origins);
        ensure!(
            sequenced + seen.acknowledged.len() == usize::from(there),
            "{wish:?} on {channel} was sequenced {sequenced} times and answered {:?}: {action}",
            seen.acknowledged
        );
        ensure!(seen.acknowledged.iter().all(|it| *it == action), "{:?} is not {action}", seen.acknowledged);
        Ok(())
    }

    pub(super) fn talk_nonsense(&mut self, client: usize, which: u8) -> Result<()> {
        let Some(connection) = self.live(client) else { return Ok(()) };
        let (line, answers) = match which % 8 {
            0 => (r#"{"jsonrpc":"2.0","method":"ping"}"#, 0),
            1 => ("{", 1),
            2 => ("[1]", 1),
            3 => (r#"{"jsonrpc":"2.0","id":0,"method":"noSuchMethod"}"#, 1),
            4 => (r#"{"jsonrpc":"2.0","id":"x","result":null}"#, 0),
            5 => (r#"{"jsonrpc":"2.0","method":"dispatchAction","params":{"channel":5}}"#, 0),
            6 => (r#"{"jsonrpc":"2.0","id":null,"method":"subscribe","params":[]}"#, 1),
            _ => (r#"{"jsonrpc":"2.0","method":"unsubscribe"}"#, 0),
        };
        let before = self.truth.head;
        let seen = self.hear(connection, line.to_owned())?;
        ensure!(seen.answers.len() == answers, "{line} was answered {:?}", seen.answers);
        ensure!(self.truth.head == before, "{line} changed something");
        Ok(())
    }
}
