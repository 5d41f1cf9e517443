//! Requests of the driver's client, whose host may die at any moment.
//!
//! Owns: what is asked for and dispatched next, drawn from the seed and from what the client sees.
//! Never: waits for more than a word of the host's.

use super::*;

impl Driver {
    pub(super) fn be_a_client(&mut self) -> Alive {
        let rounds = self.dice.from(1..ROUNDS_MAX);
        for _ in 0..rounds {
            for _ in 0..self.dice.from(1..6) {
                self.ask_for_something()?;
            }
            self.ask("ping", json!({}), Request::Ping)?;
            if !self.cast.is_quick() && self.dice.percent(60) {
                self.listen()?;
                self.wait_for_words()?;
            }
            if self.dice.percent(70) {
                self.listen()?;
            } else {
                for _ in 0..self.dice.from(0..10) {
                    if self.asked.is_empty() {
                        break;
                    }
                    self.next_line()?;
                }
            }
            if self.lagging.is_none() && self.dice.percent(10) {
                self.lagging = Some(self.mirrors.clone());
            }
        }
        Ok(())
    }

    /// Hears what is said until each turn that runs has begun to say something.
    pub(super) fn wait_for_words(&mut self) -> Alive {
        let silent =
            |chat: &ChatState| chat.active_turn.as_ref().is_some_and(|turn| turn.response_parts.is_empty());
        while self.mirrors.chats().any(|(_, chat)| silent(chat)) {
            self.next_line()?;
        }
        Ok(())
    }

    pub(super) fn fresh(&mut self, what: &str) -> String {
        self.last += 1;
        format!("{what}-{}", self.last)
    }

    pub(super) fn message(&mut self) -> Value {
        let mut steps = Vec::new();
        for _ in 0..self.dice.from(1..6) {
            let name = self.fresh("step");
            steps.push(self.cast.step(&mut self.dice, &name));
        }
        // One stream each, so that two are not taken for one that was done twice.
        let mut streams = 0;
        steps.retain(|step| !step.starts_with("/stream") || std::mem::replace(&mut streams, 1) == 0);
        // No two messages are the same.
        let name = self.fresh("end");
        steps.push(self.cast.last_step(&name));
        json!({ "text": steps.join("\n"), "origin": { "kind": "user" } })
    }

    pub(super) fn start_turn(&mut self, uri: &str, id: &str) -> Alive {
        let message = self.message();
        self.act(uri, json!({ "type": "chat/turnStarted", "turnId": id, "message": message }))
    }

    pub(super) fn ask_for_something(&mut self) -> Alive {
        let chats: Vec<String> = self.mirrors.chats().map(|(uri, _)| uri.clone()).collect();
        let dice = self.dice.from(0..1000);
        let Some(uri) = self.dice.one_of(&chats).cloned() else { return self.create() };
        let chat = self.mirrors.chat(&uri).unwrap().clone();
        match dice {
            0..25 if self.sessions.len() < SESSIONS_MAX => self.create(),
            25..35 => self.dispose(),
            35..50 if self.chats.len() < self.cast.chats_max() => self.open_chat(),
            50..56 => self.close_chat(),
            56..65 => self.move_chat(),
            65..100 => self.change_session(&uri),
            100..160 => self.change_draft(&uri, &chat),
            160..260 => {
                let (id, message) = (self.fresh("queued"), self.message());
                let set = json!({ "type": "chat/pendingMessageSet", "kind": "queued", "id": id,
                    "message": message });
                self.act(&uri, set)
            }
            260..280 => match chat.queued_messages.iter().flatten().next() {
                Some(first) => {
                    let id = &first.id;
                    let removed = json!({ "type": "chat/pendingMessageRemoved", "kind": "queued", "id": id });
                    self.act(&uri, removed)
                }
                None => Ok(()),
            },
            280..300 => {
                let (id, message) = (self.fresh("steering"), self.message());
                let set = json!({ "type": "chat/pendingMessageSet", "kind": "steering", "id": id,
                    "message": message });
                self.act(&uri, set)
            }
            300..330 => {
                let turns: Vec<&String> = chat.turns.iter().map(|turn| &turn.id).collect();
                let id = self.dice.one_of(&turns).map(|id| (*id).clone());
                let truncated = id.map(|id| json!({ "type": "chat/truncated", "turnId": id }));
                truncated.map_or(Ok(()), |action| self.act(&uri, action))
            }
            330..360 => match &chat.active_turn {
                Some(turn) => self.act(&uri, json!({ "type": "chat/turnCancelled", "turnId": turn.id })),
                None => Ok(()),
            },
            360..420 => {
                let known = self.history.turn_ids(&uri);
                let Some(id) = self.dice.one_of(&known).cloned() else { return Ok(()) };
                self.start_turn_again(&uri, &id)
            }
            _ => self.go_on(&uri, &chat),
        }
    }

    /// Sends the start of a turn that was accepted before once more.
    pub(super) fn start_turn_again(&mut self, uri: &str, id: &str) -> Alive {
        let message = self.message();
        self.must_be_refused.insert(self.last + 1);
        self.act(uri, json!({ "type": "chat/turnStarted", "turnId": id, "message": message }))
    }

    pub(super) fn dispose(&mut self) -> Alive {
        let Some(uri) = self.some_session() else { return Ok(()) };
        self.unsure.insert(uri.clone());
        self.ask("disposeSession", json!({ "channel": uri }), Request::Dispose(uri.clone()))
    }

    /// One of the sessions of which nothing is to be heard.
    pub(super) fn some_session(&mut self) -> Option<String> {
        let sessions: Vec<String> = self.sessions.difference(&self.unsure).cloned().collect();
        self.dice.one_of(&sessions).cloned()
    }

    /// One of the chats of which nothing is to be heard, besides the first ones.
    pub(super) fn some_chat(&mut self) -> Option<String> {
        let sure = |(chat, session): &(&String, &String)| {
            !self.unsure_chats.contains(*chat) && !self.unsure.contains(*session)
        };
        let chats: Vec<String> = self.chats.iter().filter(sure).map(|(chat, _)| chat.clone()).collect();
        self.dice.one_of(&chats).cloned()
    }

    /// Opens a chat of a session, or one that goes on from a turn of another one.
    pub(super) fn open_chat(&mut self) -> Alive {
        let Some(session) = self.some_session() else { return Ok(()) };
        let uri = format!("ahp-chat:/{}", self.fresh("chat"));
        let mut params = json!({ "channel": session, "chat": uri });
        let of_it = |(_, of): &(&String, &String)| **of == session;
        let mut sources: Vec<String> =
            self.chats.iter().filter(of_it).map(|(chat, _)| chat.clone()).collect();
        sources.push(chat_of(&session));
        let asked = |chat: &String| self.unanswered.values().any(|channel| channel == chat);
        sources.retain(|chat| !self.unsure_chats.contains(chat) && !asked(chat));
        if let Some(source) = self.dice.one_of(&sources).cloned().filter(|_| self.dice.percent(70)) {
            if let Some(turn) = self.mirrors.chat(&source).and_then(|chat| chat.turns.last()) {
                let turn = turn.id.clone();
                let kind = if self.dice.percent(50) { "fork" } else { "sideChat" };
                params["source"] = json!({ "kind": kind, "chat": source, "turnId": turn });
            }
        }
        self.unsure_chats.insert(uri.clone());
        self.ask("createChat", params, Request::OpenChat(uri.clone(), session))?;
        self.subscribe(uri)
    }

    pub(super) fn close_chat(&mut self) -> Alive {
        let Some(uri) = self.some_chat() else { return Ok(()) };
        self.unsure_chats.insert(uri.clone());
        self.ask("disposeChat", json!({ "channel": uri }), Request::CloseChat(uri.clone()))
    }

    pub(super) fn move_chat(&mut self) -> Alive {
        let (Some(uri), Some(session)) = (self.some_chat(), self.some_session()) else { return Ok(()) };
        self.unsure_chats.insert(uri.clone());
        let to = json!({ "kind": "session", "session": session });
        let params = json!({ "channel": uri, "destination": to });
        self.ask("moveChat", params, Request::MoveChat(uri, session))
    }

    pub(super) fn change_session(&mut self, chat: &str) -> Alive {
        let first = self.sessions.iter().find(|uri| chat_of(uri) == chat);
        let Some(session) = first.or_else(|| self.chats.get(chat)).cloned() else {
            return Ok(());
        };
        match self.dice.from(0..6) {
            4..6 => self.annotate(&session),
            0 => {
                let title = self.fresh("title");
                self.act(&session, json!({ "type": "session/titleChanged", "title": title }))
            }
            1 => {
                let title = self.fresh("name");
                self.act(chat, json!({ "type": "session/titleChanged", "title": title }))
            }
            2 => {
                let is_read = self.dice.percent(50);
                self.act(&session, json!({ "type": "session/isReadChanged", "isRead": is_read }))
            }
            _ => {
                let is_archived = self.dice.percent(50);
                self.act(chat, json!({ "type": "chat/isArchivedChanged", "isArchived": is_archived }))
            }
        }
    }

    /// Says something to a place in a file, answers it there, or takes it back.
    pub(super) fn annotate(&mut self, session: &str) -> Alive {
        let uri = annotations_uri(session);
        let there: Vec<String> = self.mirrors.annotations(&uri).iter().map(|it| it.id.clone()).collect();
        let (id, entry) = (self.fresh("annotation"), json!({ "id": self.fresh("entry"), "text": "said" }));
        let action = match (self.dice.one_of(&there).cloned(), self.dice.from(0..4)) {
            (Some(id), 0) => json!({ "type": "annotations/removed", "annotationId": id }),
            (Some(id), 1) => json!({ "type": "annotations/entrySet", "annotationId": id, "entry": entry }),
            (Some(id), 2) => {
                let resolved = self.dice.percent(50);
                json!({ "type": "annotations/updated", "annotationId": id, "resolved": resolved })
            }
            _ => {
                json!({ "type": "annotations/set", "annotation": { "id": id, "origin": { "session": session },
                "resource": "file:///x", "resolved": false, "entries": [entry] } })
            }
        };
        self.act(&uri, action)
    }

    pub(super) fn change_draft(&mut self, uri: &str, chat: &ChatState) -> Alive {
        let mut action = json!({ "type": "chat/draftChanged" });
        if chat.draft.is_none() || self.dice.percent(70) {
            let text = self.fresh("draft");
            action["draft"] = json!({ "text": text, "origin": { "kind": "user" } });
        }
        self.act(uri, action)
    }

    /// Does what moves a chat on: answers what is asked, resumes what was interrupted, or starts a
    /// turn.
    pub(super) fn go_on(&mut self, uri: &str, chat: &ChatState) -> Alive {
        let Some(turn) = &chat.active_turn else {
            let last = chat.turns.last().filter(|turn| turn.state == TurnState::Error);
            let resumes = self.cast.always_resumes() && self.dice.percent(80);
            if let Some(turn) = last.filter(|_| resumes) {
                return self.act(uri, json!({ "type": "chat/turnResume", "turnId": turn.id }));
            }
            let id = self.fresh("turn");
            return self.start_turn(uri, &id);
        };
        for part in &turn.response_parts {
            match part {
                ResponsePart::ToolCall(part) => {
                    if let Some(action) = self.decision(&turn.id, &part.tool_call) {
                        return self.act(uri, action);
                    }
                }
                ResponsePart::InputRequest(part) if part.response.is_none() => {
                    let action = self.answer(&part.request);
                    return self.act(uri, action);
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn decision(&mut self, turn: &str, call: &ToolCallState) -> Option<Value> {
        let approved = self.dice.percent(70);
        match call {
            ToolCallState::PendingConfirmation(call) => Some(json!({ "type": "chat/toolCallConfirmed",
                "turnId": turn, "toolCallId": call.tool_call_id, "approved": approved })),
            ToolCallState::PendingResultConfirmation(call) => {
                Some(json!({ "type": "chat/toolCallResultConfirmed",
                    "turnId": turn, "toolCallId": call.tool_call_id, "approved": approved }))
            }
            _ => None,
        }
    }

    pub(super) fn answer(&mut self, request: &ChatInputRequest) -> Value {
        let questions = serde_json::to_value(&request.questions).unwrap();
        let question = questions[0]["id"].as_str().unwrap();
        let text = self.fresh("answer");
        let value = json!({ "kind": "text", "value": text });
        if self.dice.percent(30) {
            return json!({ "type": "chat/inputAnswerChanged", "requestId": request.id,
                "questionId": question, "answer": { "state": "draft", "value": value } });
        }
        json!({ "type": "chat/inputCompleted", "requestId": request.id, "response": "accept",
            "answers": { question: { "state": "submitted", "value": value } } })
    }
}
