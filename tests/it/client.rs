//! The official client, over the child's pipes, as its own users write it.
//!
//! Owns: a transport on a child process, and whole conversations through `ahp::Client` with the
//! state kept by the official reducers.
//! Never: looks at raw JSON.

use std::process::Stdio;

use ahp::reducers::{apply_action_to_chat, apply_action_to_session};
use ahp::{
    Client, ClientConfig, SessionSubscription, SubscriptionEvent, Transport, TransportError, TransportMessage,
};
use ahp_types::actions::{
    ChatInputCompletedAction, ChatPendingMessageSetAction, ChatToolCallCompleteAction,
    ChatToolCallConfirmedAction, ChatToolCallResultConfirmedAction, ChatTurnCancelledAction,
    ChatTurnResumeAction, ChatTurnStartedAction, SessionActiveClientSetAction, StateAction,
};
use ahp_types::commands::{
    ChatMoveDestination, ChatMoveToSessionDestination, ChatSource, CompletionItemKind, CompletionsParams,
    CreateChatParams, CreateSessionParams, DisposeChatParams, DisposeSessionParams, FetchTurnsParams,
    FetchTurnsResult, ForkChatSource, ListSessionsParams, ListSessionsResult, MoveChatParams, MoveChatResult,
    ReconnectResult, SideChatSource, SubscribeResult, SubscribeView, SubscriptionDeliveryOptions,
};
use ahp_types::common::ROOT_RESOURCE_URI;
use ahp_types::state::{
    ChatInputAnswer, ChatInputAnswerValue, ChatInputAnswered, ChatInputResponseKind,
    ChatInputTextAnswerValue, ChatOrigin, ChatState, Message, MessageKind, MessageOrigin, PendingMessageKind,
    ResponsePart, SessionActiveClient, SessionInputRequest, SessionState, SideChatSelection, SnapshotState,
    ToolCallResult, ToolCallState, ToolInput, ToolResultContent, ToolResultTextContent, TurnState,
};
use ahp_types::version::SUPPORTED_PROTOCOL_VERSIONS;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::support::{sidecar, HUNG};

const SESSION: &str = "ahp-session:/a-conversation";

/// A child's pipes, one message a line.
struct Pipes {
    stdin: Option<ChildStdin>,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Transport for Pipes {
    async fn send(&mut self, message: TransportMessage) -> Result<(), TransportError> {
        let TransportMessage::Text(text) = TransportMessage::encode(&message.into_parsed()?)? else {
            return Err(TransportError::Protocol("not text".to_owned()));
        };
        let stdin = self.stdin.as_mut().ok_or(TransportError::Closed)?;
        stdin.write_all(format!("{text}\n").as_bytes()).await.map_err(|_| TransportError::Closed)
    }

    async fn recv(&mut self) -> Result<Option<TransportMessage>, TransportError> {
        let line = self.stdout.next_line().await.map_err(|_| TransportError::Closed)?;
        Ok(line.map(TransportMessage::Text))
    }

    async fn close(&mut self) -> Result<(), TransportError> {
        self.stdin = None;
        Ok(())
    }
}

pub async fn connect(arguments: &[&str]) -> (Child, Client) {
    let mut command = sidecar();
    command.args(arguments);
    connect_to(command).await
}

/// Starts a command that is a host, and connects to it.
pub async fn connect_to(command: std::process::Command) -> (Child, Client) {
    let mut command = Command::from(command);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let pipes =
        Pipes { stdin: child.stdin.take(), stdout: BufReader::new(child.stdout.take().unwrap()).lines() };
    // Large enough that a whole turn fits before the test looks.
    let config = ClientConfig { subscription_buffer: 1 << 14, ..ClientConfig::default() };
    (child, Client::connect(pipes, config).await.unwrap())
}

/// Creates a session of the scripted agent.
pub async fn create_session(client: &Client, session: &str) {
    let params = CreateSessionParams {
        channel: session.to_owned(),
        meta: None,
        provider: Some("script".to_owned()),
        working_directories: None,
        config: None,
        active_client: None,
        progress_token: None,
    };
    client.request::<_, ()>("createSession", params).await.unwrap();
}

fn message(text: &str) -> Message {
    Message {
        text: text.to_owned(),
        origin: MessageOrigin { kind: MessageKind::User },
        attachments: None,
        model: None,
        agent: None,
        meta: None,
    }
}

fn turn_started(turn_id: &str, text: &str) -> StateAction {
    StateAction::ChatTurnStarted(ChatTurnStartedAction {
        turn_id: turn_id.to_owned(),
        started_at: "2026-01-01T00:00:00Z".to_owned(),
        message: message(text),
        queued_message_id: None,
        meta: None,
    })
}

/// A chat's state, kept up to date by what its subscription delivers.
struct ChatMirror {
    state: ChatState,
    subscription: SessionSubscription,
    last_seen: i64,
}

impl ChatMirror {
    async fn subscribe(client: &Client, chat: &str) -> Self {
        Self::subscribe_with(client, chat, None, None).await
    }

    async fn subscribe_with(
        client: &Client,
        chat: &str,
        delivery: Option<SubscriptionDeliveryOptions>,
        view: Option<SubscribeView>,
    ) -> Self {
        let (result, subscription) =
            client.subscribe_with_options(chat.to_owned(), delivery, view).await.unwrap();
        let snapshot = result.snapshot.unwrap();
        let SnapshotState::Chat(state) = snapshot.state else { panic!("a chat's state, please") };
        Self { state: *state, subscription, last_seen: snapshot.from_seq }
    }

    /// Applies what comes until the state is as wanted.
    async fn until(&mut self, wanted: impl Fn(&ChatState) -> bool) {
        while !wanted(&self.state) {
            let event = tokio::time::timeout(HUNG, self.subscription.recv()).await.expect("nothing comes");
            let SubscriptionEvent::Action(envelope) = event.expect("the subscription has ended") else {
                continue;
            };
            assert_eq!(envelope.rejection_reason, None, "{:?}", envelope.action);
            // What was on its way when the snapshot was taken is in it.
            let server_seq = i64::try_from(envelope.server_seq).unwrap();
            let loads = matches!(envelope.action, StateAction::ChatTurnsLoaded(_));
            if server_seq > self.last_seen || loads {
                self.last_seen = server_seq;
                apply_action_to_chat(&mut self.state, &envelope.action);
            }
        }
    }

    fn call(&self, wanted: impl Fn(&ToolCallState) -> bool) -> Option<&ToolCallState> {
        call_in(&self.state, wanted)
    }
}

fn call_in(state: &ChatState, wanted: impl Fn(&ToolCallState) -> bool) -> Option<&ToolCallState> {
    state.active_turn.iter().flat_map(|turn| &turn.response_parts).find_map(|part| match part {
        ResponsePart::ToolCall(part) if wanted(&part.tool_call) => Some(&part.tool_call),
        _ => None,
    })
}

fn text_of(parts: &[ResponsePart]) -> String {
    let text = parts.iter().filter_map(|part| match part {
        ResponsePart::Markdown(part) => Some(part.content.as_str()),
        _ => None,
    });
    text.collect::<Vec<_>>().join("|")
}

#[tokio::test]
async fn official_client_runs_a_conversation_from_start_to_end() {
    hold_conversation(sidecar()).await;
}

/// Holds a conversation with the host that a command starts.
pub async fn hold_conversation(host: std::process::Command) {
    let (mut child, client) = connect_to(host).await;
    let versions = SUPPORTED_PROTOCOL_VERSIONS.iter().map(|&version| version.to_owned()).collect();
    let opened =
        client.initialize("tester".to_owned(), versions, vec![ROOT_RESOURCE_URI.to_owned()]).await.unwrap();
    assert_eq!(opened.protocol_version, "1.0.0");
    let SnapshotState::Root(root) = &opened.snapshots[0].state else { panic!("the root's state, please") };
    assert_eq!(root.agents[0].provider, "script");
    client.ping().await.unwrap();

    create_session(&client, SESSION).await;
    let (session, _) = client.subscribe(SESSION.to_owned()).await.unwrap();
    let chat = session_in(session).default_chat.unwrap();
    let mut mirror = ChatMirror::subscribe(&client, &chat).await;
    let dispatch = |action| client.dispatch(chat.clone(), action);

    // A turn with everything that a turn can have.
    let script = "Hello, world\n/think hmm\n/tool ls {\"path\":\"/\"}\n/ask rm {\"path\":\"/x\"}\n/review cat\n\
        /question [{\"kind\":\"text\",\"id\":\"name\",\"message\":\"Who?\",\"required\":true}]\n/usage 3 4\n/title Greetings";
    dispatch(turn_started("turn-1", script)).await.unwrap();
    mirror.until(|state| call_in(state, is_pending_confirmation).is_some()).await;
    let Some(ToolCallState::PendingConfirmation(call)) = mirror.call(is_pending_confirmation) else {
        panic!()
    };
    let option = call.options.iter().flatten().find(|option| option.id == "allow-always").unwrap();
    let confirmed = ChatToolCallConfirmedAction {
        turn_id: "turn-1".to_owned(),
        tool_call_id: call.tool_call_id.clone(),
        meta: None,
        approved: true,
        confirmed: None,
        reason: None,
        edited_tool_input: None,
        user_suggestion: None,
        reason_message: None,
        selected_option_id: Some(option.id.clone()),
    };
    dispatch(StateAction::ChatToolCallConfirmed(confirmed)).await.unwrap();
    mirror.until(|state| call_in(state, is_pending_review).is_some()).await;
    let Some(ToolCallState::PendingResultConfirmation(call)) = mirror.call(is_pending_review) else {
        panic!()
    };
    let reviewed = ChatToolCallResultConfirmedAction {
        turn_id: "turn-1".to_owned(),
        tool_call_id: call.tool_call_id.clone(),
        meta: None,
        approved: true,
    };
    dispatch(StateAction::ChatToolCallResultConfirmed(reviewed)).await.unwrap();
    mirror.until(|state| open_question(state).is_some()).await;
    let value = ChatInputAnswerValue::Text(ChatInputTextAnswerValue { value: "Ada".to_owned() });
    let answer = ChatInputAnswer::Submitted(ChatInputAnswered { value });
    let answered = ChatInputCompletedAction {
        request_id: open_question(&mirror.state).unwrap(),
        response: ChatInputResponseKind::Accept,
        answers: Some([("name".to_owned(), answer)].into()),
    };
    dispatch(StateAction::ChatInputCompleted(answered)).await.unwrap();
    mirror.until(|state| state.turns.len() == 1).await;
    let turn = &mirror.state.turns[0];
    assert_eq!(turn.state, TurnState::Complete);
    assert_eq!(text_of(&turn.response_parts), "Hello, world|name: Ada");
    let usage = turn.usage.as_ref().unwrap();
    assert_eq!((usage.input_tokens, usage.output_tokens), (Some(3), Some(4)));
    assert!(turn
        .response_parts
        .iter()
        .any(|part| matches!(part, ResponsePart::Reasoning(part) if part.content == "hmm")));
    let calls = turn.response_parts.iter().filter(|part| {
        matches!(part, ResponsePart::ToolCall(part) if matches!(part.tool_call, ToolCallState::Completed(_)))
    });
    assert_eq!(calls.count(), 3);

    // One that is cancelled, with a message queued behind it.
    dispatch(turn_started("turn-2", "/say before\n/hang")).await.unwrap();
    mirror.until(|state| state.active_turn.iter().any(|turn| !turn.response_parts.is_empty())).await;
    let queued = ChatPendingMessageSetAction {
        kind: PendingMessageKind::Queued,
        id: "queued-1".to_owned(),
        message: message("/say from the queue"),
    };
    dispatch(StateAction::ChatPendingMessageSet(queued)).await.unwrap();
    let cancelled = ChatTurnCancelledAction { turn_id: "turn-2".to_owned(), duration: 0, meta: None };
    dispatch(StateAction::ChatTurnCancelled(cancelled)).await.unwrap();
    mirror.until(|state| state.turns.len() == 3).await;
    assert_eq!(mirror.state.turns[1].state, TurnState::Cancelled);
    assert_eq!(text_of(&mirror.state.turns[2].response_parts), "from the queue");

    // One that fails, and is resumed after a reconnect.
    dispatch(turn_started("turn-4", "/say one\n/error-resumable flaky\n/say two")).await.unwrap();
    mirror.until(|state| state.turns.len() == 4).await;
    assert_eq!(mirror.state.turns[3].state, TurnState::Error);
    let (before, _) = client.subscribe(SESSION.to_owned()).await.unwrap();
    let mut session = session_in(before);
    let cursor = mirror.last_seen;
    let resume = StateAction::ChatTurnResume(ChatTurnResumeAction { turn_id: "turn-4".to_owned() });
    dispatch(resume).await.unwrap();
    let mut live = ChatMirror::subscribe(&client, &chat).await;
    live.until(|state| state.turns.get(3).is_some_and(|turn| turn.state == TurnState::Complete)).await;
    let subscriptions = vec![chat.clone(), SESSION.to_owned(), "ahp-session:/gone".to_owned()];
    let back = client.reconnect("tester".to_owned(), cursor, subscriptions).await.unwrap();
    let ReconnectResult::Replay(replay) = back else { panic!("a replay, please") };
    assert_eq!(replay.missing, ["ahp-session:/gone"]);
    for envelope in &replay.actions {
        match envelope.channel.as_str() {
            SESSION => apply_action_to_session(&mut session, &envelope.action),
            _ => apply_action_to_chat(&mut mirror.state, &envelope.action),
        };
    }
    assert!(mirror.state.turns == live.state.turns, "the replay led elsewhere");
    assert_eq!(text_of(&mirror.state.turns[3].response_parts), "one|two");

    let (fresh, _) = client.subscribe(SESSION.to_owned()).await.unwrap();
    let fresh = session_in(fresh);
    assert_ne!(replay.actions.iter().filter(|envelope| envelope.channel == SESSION).count(), 0);
    // No action carries the activity bits of a session's status.
    session.status = fresh.status;
    assert!(session == fresh, "the session's mirror is not its state");

    let fresh = ChatMirror::subscribe(&client, &chat).await.state;
    assert!(ChatState { title: fresh.title.clone(), ..mirror.state } == fresh, "the mirror is not the state");
    let params =
        ListSessionsParams { channel: ROOT_RESOURCE_URI.to_owned(), meta: None, limit: None, cursor: None };
    let listed: ListSessionsResult = client.request("listSessions", params).await.unwrap();
    assert_eq!(listed.items.len(), 1);
    assert_eq!(listed.items[0].title, "Greetings");
    assert_eq!(listed.items[0].modified_at, fresh.modified_at);

    let params = DisposeSessionParams { channel: SESSION.to_owned(), meta: None };
    client.request::<_, ()>("disposeSession", params).await.unwrap();
    assert!(client.subscribe(SESSION.to_owned()).await.is_err());
    client.shutdown().await;
    assert!(child.wait().await.unwrap().success());
}

/// Opens another chat; returns its mirror.
async fn open_chat(
    client: &Client,
    chat: &str,
    source: Option<ChatSource>,
    text: Option<&str>,
) -> ChatMirror {
    let params = CreateChatParams {
        channel: SESSION.to_owned(),
        meta: None,
        chat: chat.to_owned(),
        initial_message: text.map(message),
        source,
        working_directories: None,
    };
    client.request::<_, ()>("createChat", params).await.unwrap();
    ChatMirror::subscribe(client, chat).await
}

fn last_text(state: &ChatState) -> String {
    text_of(&state.turns.last().unwrap().response_parts)
}

#[tokio::test]
async fn official_client_runs_several_chats_concurrently() {
    let (mut child, client) = connect(&["--deterministic"]).await;
    let versions = SUPPORTED_PROTOCOL_VERSIONS.iter().map(ToString::to_string).collect();
    client.initialize("tester".to_owned(), versions, vec![]).await.unwrap();
    create_session(&client, SESSION).await;
    let (subscribed, mut catalogue) = client.subscribe(SESSION.to_owned()).await.unwrap();
    let mut session = session_in(subscribed);
    let first = session.default_chat.clone().unwrap();
    let is_over = |state: &ChatState| state.active_turn.is_none();

    // Two at once: each waits for its own answer.
    let mut main = ChatMirror::subscribe(&client, &first).await;
    let mut second = open_chat(&client, "ahp-chat:/second", None, Some("/ask second\n/say done")).await;
    client.dispatch(first.clone(), turn_started("turn-1", "/ask first\n/say done too")).await.unwrap();
    main.until(|state| call_in(state, is_pending_confirmation).is_some()).await;
    second.until(|state| call_in(state, is_pending_confirmation).is_some()).await;
    for mirror in [&mut second, &mut main] {
        let turn_id = mirror.state.active_turn.as_ref().unwrap().id.clone();
        let confirmed = ChatToolCallConfirmedAction {
            turn_id,
            tool_call_id: "call-1".to_owned(),
            meta: None,
            approved: true,
            confirmed: None,
            reason: None,
            edited_tool_input: None,
            user_suggestion: None,
            reason_message: None,
            selected_option_id: None,
        };
        let action = StateAction::ChatToolCallConfirmed(confirmed);
        client.dispatch(mirror.state.resource.clone(), action).await.unwrap();
        mirror.until(is_over).await;
    }
    assert_eq!((last_text(&main.state), last_text(&second.state)), ("done too".into(), "done".into()));

    // A fork and a side chat know what was said; only the fork shows it.
    client.dispatch(first.clone(), turn_started("turn-2", "/say later")).await.unwrap();
    main.until(|state| state.turns.len() == 2 && is_over(state)).await;
    let (chat, turn_id) = (first.clone(), "turn-1".to_owned());
    let source = ChatSource::Fork(ForkChatSource { chat, turn_id });
    let mut fork = open_chat(&client, "ahp-chat:/fork", Some(source), Some("/recall")).await;
    fork.until(is_over).await;
    assert_eq!(fork.state.turns.len(), 2);
    assert_eq!(fork.state.turns[0], main.state.turns[0]);
    assert_eq!(last_text(&fork.state), "/ask first\n/say done too");
    let selection = Some(SideChatSelection { text: "later".to_owned(), response_part_id: None });
    let (chat, turn_id) = (first.clone(), "turn-2".to_owned());
    let source = ChatSource::SideChat(SideChatSource { chat, turn_id, selection: selection.clone() });
    let mut aside = open_chat(&client, "ahp-chat:/aside", Some(source), Some("/recall")).await;
    aside.until(is_over).await;
    assert_eq!(aside.state.turns.len(), 1);
    assert_eq!(last_text(&aside.state), "about: later\n/ask first\n/say done too\n/say later");
    let (chat, turn_id) = (first.clone(), "turn-2".to_owned());
    assert_eq!(aside.state.origin, Some(ChatOrigin::SideChat { chat, turn_id, selection }));

    // One goes, one moves, and the session's mirror tells it.
    let dispose = DisposeChatParams { channel: "ahp-chat:/second".to_owned(), meta: None };
    client.request::<_, ()>("disposeChat", dispose).await.unwrap();
    let to = ChatMoveToSessionDestination { session: SESSION.to_owned(), after: Some(first.clone()) };
    let moved: MoveChatResult = client
        .request(
            "moveChat",
            MoveChatParams {
                channel: "ahp-chat:/aside".to_owned(),
                meta: None,
                destination: ChatMoveDestination::Session(to),
            },
        )
        .await
        .unwrap();
    assert_eq!(moved.session, SESSION);
    let wanted = [first.as_str(), "ahp-chat:/aside", "ahp-chat:/fork"];
    while !session.chats.iter().map(|row| row.resource.as_str()).eq(wanted) {
        let event = tokio::time::timeout(HUNG, catalogue.recv()).await.expect("nothing comes");
        if let SubscriptionEvent::Action(envelope) = event.expect("the subscription has ended") {
            apply_action_to_session(&mut session, &envelope.action);
        }
    }
    let fresh = session_in(client.subscribe(SESSION.to_owned()).await.unwrap().0);
    // No action carries the activity bits of a session's status.
    session.status = fresh.status;
    assert!(session == fresh, "the session's mirror is not its state");
    client.shutdown().await;
    assert!(child.wait().await.unwrap().success());
}

#[tokio::test]
async fn official_client_executes_a_tool() {
    let (mut child, client) = connect(&[]).await;
    let versions = SUPPORTED_PROTOCOL_VERSIONS.iter().map(|&version| version.to_owned()).collect();
    client.initialize("worker".to_owned(), versions, vec![]).await.unwrap();
    create_session(&client, SESSION).await;
    let (session, mut news) = client.subscribe(SESSION.to_owned()).await.unwrap();
    let mut session = session_in(session);
    let chat = session.default_chat.clone().unwrap();
    let look = serde_json::json!({ "name": "look", "title": "Look around" });
    let active_client = SessionActiveClient {
        client_id: "worker".to_owned(),
        display_name: None,
        tools: vec![serde_json::from_value(look).unwrap()],
        customizations: None,
    };
    let joined = SessionActiveClientSetAction { active_client };
    client.dispatch(SESSION.to_owned(), StateAction::SessionActiveClientSet(joined)).await.unwrap();
    let script = turn_started("turn-1", "/client look {\"at\":\"the sky\"}");
    client.dispatch(chat.clone(), script).await.unwrap();

    // The session alone tells what there is to do.
    let errand = loop {
        let errand = session.input_needed.iter().flatten().find_map(|request| match request {
            SessionInputRequest::ToolClientExecution(errand) => Some(errand.clone()),
            _ => None,
        });
        if let Some(errand) = errand {
            break errand;
        }
        let event = tokio::time::timeout(HUNG, news.recv()).await.expect("nothing comes");
        if let SubscriptionEvent::Action(envelope) = event.expect("the subscription has ended") {
            apply_action_to_session(&mut session, &envelope.action);
        }
    };
    assert_eq!((errand.client_id.as_str(), errand.chat.as_str()), ("worker", chat.as_str()));
    assert_eq!(errand.tool_call.display_name, "Look around");
    assert_eq!(errand.tool_call.tool_input, Some(ToolInput::Inline("{\"at\":\"the sky\"}".to_owned())));
    let seen = ToolResultContent::Text(ToolResultTextContent { text: "a lark".to_owned() });
    let result = ToolCallResult {
        success: true,
        past_tense_message: "Looked around".into(),
        content: Some(vec![seen]),
        structured_content: None,
        error: None,
    };
    let done = ChatToolCallCompleteAction {
        turn_id: errand.turn_id,
        tool_call_id: errand.tool_call.tool_call_id,
        meta: None,
        result,
        requires_result_confirmation: None,
    };
    client.dispatch(errand.chat, StateAction::ChatToolCallComplete(done)).await.unwrap();
    let mut mirror = ChatMirror::subscribe(&client, &chat).await;
    mirror.until(|state| state.turns.len() == 1).await;
    assert_eq!(text_of(&mirror.state.turns[0].response_parts), "a lark");
    client.shutdown().await;
    assert!(child.wait().await.unwrap().success());
}

#[tokio::test]
async fn official_client_pages_through_turns_to_the_first() {
    let (mut child, client) = connect(&[]).await;
    client.initialize("tester".to_owned(), vec!["1.0.0".to_owned()], vec![]).await.unwrap();
    create_session(&client, SESSION).await;
    let (session, _) = client.subscribe(SESSION.to_owned()).await.unwrap();
    let chat = session_in(session).default_chat.unwrap();
    let mut whole = ChatMirror::subscribe(&client, &chat).await;
    for turn in 1..=7 {
        let started = turn_started(&format!("turn-{turn}"), &format!("/say {turn}"));
        client.dispatch(chat.clone(), started).await.unwrap();
        whole.until(|state| state.turns.len() == turn).await;
    }

    // Followed anew: the newest turns, and text at most half a minute late.
    let delivery = SubscriptionDeliveryOptions { max_latency_ms: Some(30_000) };
    let view = SubscribeView { turns: Some(3) };
    let mut window = ChatMirror::subscribe_with(&client, &chat, Some(delivery), Some(view)).await;
    let ids = |state: &ChatState| state.turns.iter().map(|turn| turn.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&window.state), ["turn-5", "turn-6", "turn-7"]);
    client.dispatch(chat.clone(), turn_started("turn-8", "/stream 50 10")).await.unwrap();
    window.until(|state| state.turns.len() == 4).await;
    let mut pages = 0;
    while let Some(cursor) = window.state.turns_next_cursor.clone() {
        let params = FetchTurnsParams { channel: chat.clone(), meta: None, cursor: Some(cursor.clone()) };
        client.request::<_, FetchTurnsResult>("fetchTurns", params).await.unwrap();
        window.until(|state| state.turns_next_cursor.as_ref() != Some(&cursor)).await;
        pages += 1;
    }
    assert_eq!(pages, 2);
    let fresh = ChatMirror::subscribe(&client, &chat).await.state;
    assert_eq!(fresh.turns.len(), 8);
    assert!(ChatState { title: fresh.title.clone(), ..window.state } == fresh, "the mirror is not the state");
    client.shutdown().await;
    assert!(child.wait().await.unwrap().success());
}

#[tokio::test]
async fn official_client_receives_completions() {
    let (mut child, client) = connect(&[]).await;
    let opened = client.initialize("tester".to_owned(), vec!["1.0.0".to_owned()], vec![]).await.unwrap();
    let triggers = ["/", "#", "@"].map(str::to_owned);
    assert_eq!(opened.completion_trigger_characters.as_deref(), Some(&triggers[..]));
    create_session(&client, SESSION).await;
    let params = CompletionsParams {
        channel: SESSION.to_owned(),
        meta: None,
        kind: CompletionItemKind::UserMessage,
        text: "/th".to_owned(),
        offset: 3,
    };
    let completed = client.completions(params).await.unwrap();
    assert_eq!(completed.items.len(), 1);
    assert_eq!(completed.items[0].insert_text, "/think ");
    client.shutdown().await;
    assert!(child.wait().await.unwrap().success());
}

#[tokio::test]
async fn official_client_of_0_9_0_is_served() {
    let (mut child, client) = connect(&[]).await;
    let opened = client.initialize("old".to_owned(), vec!["0.9.0".to_owned()], vec![]).await.unwrap();
    assert_eq!(opened.protocol_version, "0.9.0");
    create_session(&client, SESSION).await;
    let (session, _) = client.subscribe(SESSION.to_owned()).await.unwrap();
    let chat = session_in(session).default_chat.unwrap();
    let mut mirror = ChatMirror::subscribe(&client, &chat).await;
    client.dispatch(chat.clone(), turn_started("turn-1", "Good day")).await.unwrap();
    mirror.until(|state| state.turns.len() == 1).await;
    assert_eq!(text_of(&mirror.state.turns[0].response_parts), "Good day");

    let fresh = ChatMirror::subscribe(&client, &chat).await.state;
    assert!(ChatState { title: fresh.title.clone(), ..mirror.state } == fresh, "the mirror is not the state");
    client.shutdown().await;
    assert!(child.wait().await.unwrap().success());
}

#[tokio::test]
async fn official_client_subscribes_to_logs_and_goes_on() {
    let (mut child, client) = connect(&["--log", "info"]).await;
    let versions = vec!["1.0.0".to_owned()];
    let opened = client.initialize("tester".to_owned(), versions, Vec::new()).await.unwrap();
    let logs = opened.telemetry.unwrap().logs.unwrap().replace("{level}", "info");
    let (subscribed, _) = client.subscribe(logs.clone()).await.unwrap();
    assert!(subscribed.snapshot.is_none(), "logs have no state");
    assert!(client.subscribe("ahp-otlp://logs/loud".to_owned()).await.is_err());
    let back = client.reconnect("tester".to_owned(), 0, vec![logs.clone()]).await.unwrap();
    let ReconnectResult::Replay(replay) = back else { panic!("a replay, please") };
    assert!(replay.missing.is_empty() && replay.actions.is_empty(), "{:?}", replay.missing);
    // This is logged, so that records are sent; the crate passes over them.
    client.notify("unknown", serde_json::json!({})).await.unwrap();
    create_session(&client, SESSION).await;
    client.unsubscribe(logs).await.unwrap();
    client.ping().await.unwrap();
    client.shutdown().await;
    assert!(child.wait().await.unwrap().success());
}

fn session_in(subscribed: SubscribeResult) -> SessionState {
    let SnapshotState::Session(state) = subscribed.snapshot.unwrap().state else {
        panic!("a session's state, please")
    };
    *state
}

fn is_pending_confirmation(call: &ToolCallState) -> bool {
    matches!(call, ToolCallState::PendingConfirmation(_))
}

fn is_pending_review(call: &ToolCallState) -> bool {
    matches!(call, ToolCallState::PendingResultConfirmation(_))
}

fn open_question(state: &ChatState) -> Option<String> {
    state.active_turn.iter().flat_map(|turn| &turn.response_parts).find_map(|part| match part {
        ResponsePart::InputRequest(part) if part.response.is_none() => Some(part.request.id.clone()),
        _ => None,
    })
}
