//! Several clients of one host that act in one session, however they are connected.
//!
//! Owns: what each of them does on a [`Move`], and what must be so then.
//! Never: knows how a line comes to the host and back.

use anyhow::{ensure, Context, Result};
use serde_json::{json, Value};

use super::shared::moves::Move;
use super::shared::party::Party;

/// Clients that are connected to a host in some way.
pub trait Stage {
    /// Returns the number of clients.
    fn count(&self) -> usize;

    /// One of them.
    fn party(&mut self, seat: usize) -> &mut Party;

    fn is_connected(&self, seat: usize) -> bool;

    /// Connects it.
    fn open(&mut self, seat: usize) -> Result<()>;

    /// Closes the client's connection and loses the messages in flight.
    fn lose(&mut self, seat: usize) -> Result<()>;

    /// Sends a line from the client.
    fn say(&mut self, seat: usize, line: String) -> Result<()>;

    /// Sends a request and receives all messages up to its answer.
    fn ask(&mut self, seat: usize, method: &str, params: &Value) -> Result<Value>;

    /// Receives all messages sent to the client so far.
    fn hear_all(&mut self, seat: usize) -> Result<()>;

    /// Time goes by.
    fn listen(&mut self, seat: usize) -> Result<()>;

    /// Returns the number of moves so far.
    fn at(&self) -> usize;

    /// Connects the client and performs the handshake; returns the answer.
    fn enter(&mut self, seat: usize) -> Result<Value> {
        self.open(seat)?;
        let dialect = self.party(seat).dialect();
        let root = dialect.root().to_owned();
        let params = dialect.initialize(&format!("judge-{seat}"), std::slice::from_ref(&root));
        let opened = self.ask(seat, "initialize", &params)?;
        self.party(seat).mirror.take(&opened["snapshots"][0])?;
        self.list(seat)?;
        Ok(opened)
    }

    /// One of them creates a session, and all follow it.
    fn share_a_session(&mut self, creator: usize) -> Result<()> {
        let dialect = self.party(creator).dialect();
        let uri = dialect.session("judged");
        let params = dialect.params("createSession", &uri, json!({ "provider": "script" }));
        self.ask(creator, "createSession", &params)?;
        for seat in 0..self.count() {
            // Each version may call it something else.
            let listed = self.list(seat)?;
            let uri =
                listed["items"][0]["resource"].as_str().context("the session is not listed")?.to_owned();
            self.party(seat).session.clone_from(&uri);
            self.follow(seat, &uri)?;
            self.party(seat).find_conversation()?;
            let conversation = self.party(seat).conversation.clone();
            if conversation != uri {
                self.follow(seat, &conversation)?;
                let annotations = self.party(seat).annotations();
                self.follow(seat, &annotations)?;
            }
        }
        Ok(())
    }

    fn step(&mut self, seat: usize, chosen: &Move) -> Result<()> {
        let party = self.party(seat);
        let (session, conversation) = (party.session.clone(), party.conversation.clone());
        let dialect = party.dialect();
        if !self.is_connected(seat) {
            return if matches!(chosen, Move::Return) { self.reconnect_and_compare(seat) } else { Ok(()) };
        }
        match chosen {
            Move::OnSession(action) => self.act(seat, &session, action),
            Move::OnConversation(action) => self.act(seat, &conversation, action),
            Move::OnAnnotations(action) => {
                let annotations = self.party(seat).annotations();
                self.act(seat, &annotations, action)
            }
            Move::Listen => self.listen(seat),
            Move::Lose => self.drop_out(seat),
            Move::Return => Ok(()),
            Move::Resubscribe => {
                let params = dialect.params("unsubscribe", &conversation, json!({}));
                let line = self.party(seat).notify("unsubscribe", &params)?;
                self.say(seat, line)?;
                // What came before that.
                self.hear_all(seat)?;
                self.party(seat).mirror.leave(&conversation);
                let snapshot = self.snapshot_in(seat, &conversation, dialect.window(self.at() % 4))?;
                self.party(seat).mirror.take(&snapshot)
            }
            Move::Compare => self.compare(seat),
            Move::Another { dispose } => {
                let other = dialect.session(&format!("other-{}", self.at()));
                self.ask(seat, "createSession", &dialect.params("createSession", &other, json!({})))?;
                if *dispose {
                    self.ask(seat, "disposeSession", &dialect.params("disposeSession", &other, json!({})))?;
                }
                Ok(())
            }
        }
    }

    /// Loses the client's connection: the host may not have received its last messages.
    fn drop_out(&mut self, seat: usize) -> Result<()> {
        let party = self.party(seat);
        party.mirror.away = true;
        party.unechoed.clear();
        self.lose(seat)
    }

    fn reconnect_and_compare(&mut self, seat: usize) -> Result<()> {
        self.open(seat)?;
        let params = self.party(seat).reconnect()?;
        let result = self.ask(seat, "reconnect", &params)?;
        self.party(seat).catch_up(&result)?;
        self.compare(seat).context("after coming back")
    }

    /// Reconnects the clients that have lost their connection.
    fn gather(&mut self) -> Result<()> {
        for seat in 0..self.count() {
            if !self.is_connected(seat) {
                self.reconnect_and_compare(seat)?;
            }
        }
        Ok(())
    }

    fn act(&mut self, seat: usize, channel: &str, action: &Value) -> Result<()> {
        let line = self.party(seat).dispatch(channel, action)?;
        self.say(seat, line)
    }

    fn snapshot_in(&mut self, seat: usize, channel: &str, members: Value) -> Result<Value> {
        let params = self.party(seat).dialect().params("subscribe", channel, members);
        let snapshot = self.ask(seat, "subscribe", &params)?["snapshot"].clone();
        ensure!(snapshot["resource"] == *channel, "asked for {channel}, got {}", snapshot["resource"]);
        Ok(snapshot)
    }

    fn follow(&mut self, seat: usize, channel: &str) -> Result<()> {
        let snapshot = self.snapshot_in(seat, channel, json!({}))?;
        self.party(seat).mirror.take(&snapshot)
    }

    /// Lists the sessions; the list says what was told.
    fn list(&mut self, seat: usize) -> Result<Value> {
        let dialect = self.party(seat).dialect();
        let params = dialect.params("listSessions", dialect.root(), json!({}));
        let listed = self.ask(seat, "listSessions", &params)?;
        self.party(seat).mirror.compare_list(&listed)?;
        Ok(listed)
    }

    /// Compares everything that a client holds with what the host shows it now; all it said has
    /// come back.
    fn compare(&mut self, seat: usize) -> Result<()> {
        for channel in self.party(seat).mirror.channels() {
            let snapshot = self.snapshot_in(seat, &channel, json!({}))?;
            self.party(seat).mirror.compare(&snapshot)?;
        }
        self.list(seat)?;
        self.party(seat).check_all_echoed()
    }
}
