//! Schedules of random steps, each of which is meaningful after any other.
//!
//! Owns: the steps and how they are chosen. Every index is taken modulo what there is when the step
//! is carried out, so that a step can be left out and the rest still means something: that is what
//! makes a failing case shrink to a small one.
//! Never: knows the host.

use std::fmt;

use proptest::collection::vec;
use proptest::prelude::*;

/// Sequence of inputs to one host.
pub struct Schedule {
    /// Number of clients.
    pub clients: usize,
    /// The replay window, in actions.
    pub window: usize,
    /// Deltas are merged whenever a client is behind.
    pub merge: bool,
    pub steps: Vec<Step>,
    pub end: End,
}

/// How it ends.
#[derive(Debug, Clone, Copy)]
pub enum End {
    /// Agents finish what they have begun.
    Finish,
    /// Ends the input of all clients; then agents finish.
    Drain,
    /// Ends the input of all clients, and the drain timeout expires before agents finish.
    DrainTooLong,
    /// Turns are cancelled.
    Cancel,
}

/// One thing that happens.
#[derive(Debug, Clone)]
pub enum Step {
    /// Time goes by; the wall clock may be put back meanwhile.
    Time {
        ms: u16,
        back: bool,
    },
    /// A batch of inputs is over.
    Settle,
    /// The timers that were asked for run out.
    Timers,
    /// A client reads what waits for it, up to so many bytes.
    Read {
        client: u8,
        bytes: u16,
    },
    /// Everybody reads everything, and mirrors are compared.
    Compare,
    /// A connection is lost with everything that was not read; the host hears of it now or never.
    Lose {
        client: u8,
        heard: bool,
    },
    /// A client comes back (or says `reconnect` on the connection that it has).
    Reconnect {
        client: u8,
        cursor: Cursor,
        leave_out: u8,
    },
    /// A client begins anew, or says `initialize` twice.
    Initialize {
        client: u8,
        channels: u8,
    },
    /// A client follows a channel: with a window of so many turns, and its text held back for so
    /// long.
    Subscribe {
        client: u8,
        channel: u8,
        turns: Option<u8>,
        delay: Option<u16>,
    },
    /// A client loads older turns of a chat.
    Fetch {
        client: u8,
        chat: u8,
        from: From,
    },
    Unsubscribe {
        client: u8,
        channel: u8,
    },
    Create {
        client: u8,
        name: u8,
        how: u8,
    },
    Dispose {
        client: u8,
        session: u8,
    },
    /// A client opens another chat, of its own or from a turn of one that there is.
    OpenChat {
        client: u8,
        session: u8,
        name: u8,
        how: u8,
        from: u8,
        turn: u8,
    },
    CloseChat {
        client: u8,
        chat: u8,
    },
    MoveChat {
        client: u8,
        chat: u8,
        to: u8,
        after: Option<u8>,
    },
    List {
        client: u8,
        limit: u8,
    },
    /// A client asks for a change.
    Dispatch {
        client: u8,
        chat: u8,
        wish: Wish,
        damage: Option<Damage>,
    },
    /// A backend reports.
    Report {
        chat: u8,
        report: Report,
    },
    /// A client says something that is no request, or none that can be served.
    Nonsense {
        client: u8,
        which: u8,
    },
}

/// The cursor that a client comes back with.
#[derive(Debug, Clone, Copy)]
pub enum Cursor {
    /// Latest sequence number that the client has seen.
    Own,
    /// Older sequence number: the client has more than it states.
    Older(u8),
    /// One from elsewhere, under its own id. It can be known for what it is.
    Beyond(u8),
    /// As a client that nobody has heard of.
    Stranger(u8),
}

/// From where a client loads older turns.
#[derive(Debug, Clone, Copy)]
pub enum From {
    /// The cursor that it holds, if it holds one.
    Own,
    /// No cursor.
    Next,
    /// A cursor from elsewhere.
    Elsewhere,
}

/// Request or action of a client.
#[derive(Debug, Clone)]
pub enum Wish {
    Start {
        turn: u8,
        text: u8,
        queued: Option<u8>,
    },
    Cancel,
    Resume {
        turn: u8,
    },
    Truncate {
        turn: Option<u8>,
    },
    Decide {
        call: u8,
        approved: bool,
        option: Option<u8>,
    },
    Review {
        call: u8,
        approved: bool,
    },
    DraftAnswer {
        question: u8,
        answer: u8,
    },
    Answer {
        question: u8,
        response: u8,
        answer: Option<u8>,
    },
    Queue {
        id: u8,
        text: u8,
        steering: bool,
    },
    Unqueue {
        id: u8,
        steering: bool,
    },
    Reorder {
        order: Vec<u8>,
    },
    Draft {
        text: Option<u8>,
    },
    ChatFlag {
        archived: bool,
        set: bool,
    },
    RenameChat {
        title: u8,
    },
    Configure {
        value: u8,
        replace: bool,
    },
    ConfigureHost {
        value: u8,
        replace: bool,
    },
    SessionFlag {
        archived: bool,
        set: bool,
    },
    RenameSession {
        title: u8,
    },
    DefaultChat {
        other: bool,
    },
    /// To take part in the session with some tools, or none.
    TakePart {
        tools: u8,
    },
    /// To take part no more.
    LeaveOff,
    /// To say what a tool call has produced so far that runs on a client.
    Stream {
        call: u8,
        text: u8,
    },
    /// To say how it ended.
    Deliver {
        call: u8,
        success: bool,
        review: bool,
    },
    /// To work elsewhere.
    WorkIn {
        how: u8,
        directory: u8,
        other: u8,
    },
    /// To say something to a place in a file, or to take it back.
    Annotate {
        how: u8,
        annotation: u8,
        entry: u8,
    },
    /// To switch an MCP server, or to stop or start it.
    Serve {
        how: u8,
        server: u8,
    },
    /// Some action of the client's table, or of the server's, or of nobody's, without a sensible
    /// payload.
    Any {
        which: u8,
    },
}

/// Defect of an invalid action.
#[derive(Debug, Clone, Copy)]
pub enum Damage {
    /// Wrong channel.
    Channel(u8),
    /// Wrong turn.
    Turn,
    /// A member is left out.
    Missing(u8),
    /// A member is of another type.
    Retyped(u8),
}

/// Report of a backend.
#[derive(Debug, Clone)]
pub enum Report {
    Opened,
    Opening {
        done: u8,
        of: u8,
    },
    OpenFailed,
    Died,
    Left,
    /// Start of an own turn of the backend, with one of its possible reasons.
    Begins(bool),
    Handle(u8),
    Title(u8),
    /// Something that has no place: what there is under a name now, if anything is.
    Note {
        name: u8,
        value: Option<u8>,
    },
    /// Page that the agent shows; none if it is closed.
    Canvas {
        name: u8,
        page: Option<u8>,
    },
    /// MCP servers that the agent was given, some of them with a problem.
    Servers(u8),
    /// About the newest run, or an older one.
    Turn {
        older: u8,
        event: Happening,
    },
}

/// Event of a run.
#[derive(Debug, Clone)]
pub enum Happening {
    Part {
        thought: bool,
        text: u8,
    },
    Text {
        thought: bool,
        text: u8,
    },
    Activity(Option<u8>),
    Notice(u8),
    Usage(u8),
    Started {
        call: u8,
    },
    Input {
        call: u8,
        text: u8,
    },
    Ready {
        call: u8,
        gate: u8,
    },
    Content {
        call: u8,
        text: u8,
    },
    /// A call begins of a tool that runs on a client, if one offers it.
    ClientToolStarted {
        call: u8,
        tool: u8,
    },
    /// A tool is called that runs on a client, if one offers it.
    ClientTool {
        call: u8,
        tool: u8,
    },
    Done {
        call: u8,
        success: bool,
        review: bool,
    },
    Question {
        id: u8,
        shape: u8,
    },
    QuestionWithdrawn {
        id: u8,
    },
    /// Something, and more besides.
    With(Box<Happening>, u8),
    /// A steering message is taken in, the newest or one before it.
    Steered(u8),
    /// Steering message that the backend does not consume.
    NotSteered(u8),
    Ended(u8),
}

/// Whole schedules.
pub fn schedules() -> impl Strategy<Value = Schedule> {
    let end = prop_oneof![
        6 => Just(End::Finish),
        1 => Just(End::Drain),
        1 => Just(End::DrainTooLong),
        1 => Just(End::Cancel),
    ];
    let window = prop_oneof![3 => Just(10_000usize), 1 => 0usize..40];
    (2usize..5, 0u8..3, window, any::<bool>(), vec(scene(), 1..50), end).prop_map(
        |(clients, sessions, window, merge, scenes, end)| Schedule {
            clients,
            window,
            merge,
            steps: beginning(clients, sessions).into_iter().chain(scenes.into_iter().flatten()).collect(),
            end,
        },
    )
}

impl Schedule {
    /// Returns the schedule without these steps.
    pub fn without(&self, steps: std::ops::Range<usize>) -> Self {
        let kept = self.steps.iter().enumerate().filter(|(at, _)| !steps.contains(at));
        Self { steps: kept.map(|(_, step)| step.clone()).collect(), ..*self }
    }
}

/// Sessions in which a turn runs, followed by everybody.
fn beginning(clients: usize, sessions: u8) -> Vec<Step> {
    let mut steps = Vec::new();
    for name in 0..sessions {
        steps.push(Step::Create { client: 0, name, how: 0 });
        steps.push(Step::Report { chat: 0, report: Report::Opened });
        steps.push(dispatch(0, 0, Wish::Start { turn: 0, text: 0, queued: None }));
    }
    let everything = 2 * sessions + 1;
    for client in (0u8..).take(clients) {
        steps.extend((0..everything).map(|channel| Step::Subscribe {
            client,
            channel,
            turns: None,
            delay: None,
        }));
    }
    steps
}

fn dispatch(client: u8, chat: u8, wish: Wish) -> Step {
    Step::Dispatch { client, chat, wish, damage: None }
}

fn run(chat: u8, event: Happening) -> Step {
    Step::Report { chat, report: Report::Turn { older: 0, event } }
}

/// Steps that belong together, because chance alone would seldom put them in this order; or any one
/// step.
fn scene() -> impl Strategy<Value = Vec<Step>> {
    let chat = || prop_oneof![4 => Just(0u8), 1 => Just(1u8)];
    prop_oneof![
        20 => step().prop_map(|step| vec![step]),
        4 => (chat(), index(), any::<bool>(), 1usize..8).prop_map(|(chat, text, thought, count)| {
            vec![run(chat, Happening::Text { thought, text }); count]
        }),
        4 => permission(chat()),
        2 => review(chat()),
        3 => question(chat()),
        3 => (chat(), index(), index(), any::<bool>()).prop_map(|(chat, client, how, opened)| {
            let mut steps = vec![run(chat, Happening::Ended(how))];
            steps.push(dispatch(client, chat, Wish::Start { turn: 0, text: how, queued: None }));
            steps.extend(opened.then_some(Step::Report { chat, report: Report::Opened }));
            steps
        }),
        2 => (chat(), index(), any::<bool>()).prop_map(|(chat, client, late)| {
            let resume = dispatch(client, chat, Wish::Resume { turn: 0 });
            let text = |text| dispatch(client, chat, Wish::Queue { id: 0, text, steering: false });
            let failed = run(chat, Happening::Ended(1));
            if late { vec![text(0), failed, text(1), resume] } else { vec![text(0), failed, resume] }
        }),
        4 => absence(),
        3 => window(chat()),
        2 => queue(chat()),
        5 => chats(),
        5 => errand(chat()),
        3 => remarks(chat()),
    ]
}

/// A tool call that asks for permission.
fn permission(chat: impl Strategy<Value = u8>) -> impl Strategy<Value = Vec<Step>> {
    let option = proptest::option::weighted(0.4, index());
    (chat, index(), index(), index(), any::<bool>(), option, any::<bool>()).prop_map(
        |(chat, client, call, gate, approved, option, done)| {
            let mut steps = vec![
                run(chat, Happening::Started { call }),
                run(chat, Happening::Input { call, text: 0 }),
                run(chat, Happening::Ready { call, gate }),
                dispatch(client, chat, Wish::Decide { call: 0, approved, option }),
            ];
            let success = approved;
            steps.extend(done.then(|| run(chat, Happening::Done { call, success, review: false })));
            steps
        },
    )
}

/// A tool call whose result is reviewed.
fn review(chat: impl Strategy<Value = u8>) -> impl Strategy<Value = Vec<Step>> {
    (chat, index(), index(), any::<bool>(), any::<bool>()).prop_map(
        |(chat, client, call, content, approved)| {
            let mut steps =
                vec![run(chat, Happening::Started { call }), run(chat, Happening::Ready { call, gate: 2 })];
            steps.extend(content.then(|| run(chat, Happening::Content { call, text: 1 })));
            steps.push(run(chat, Happening::Done { call, success: true, review: true }));
            steps.push(dispatch(client, chat, Wish::Review { call: 0, approved }));
            steps
        },
    )
}

/// A question that is answered.
fn question(chat: impl Strategy<Value = u8>) -> impl Strategy<Value = Vec<Step>> {
    (chat, index(), index(), index(), index()).prop_map(|(chat, client, id, answer, response)| {
        vec![
            run(chat, Happening::Question { id, shape: answer }),
            dispatch(client, chat, Wish::DraftAnswer { question: 0, answer }),
            dispatch(client, chat, Wish::Answer { question: 0, response, answer: Some(answer) }),
        ]
    })
}

/// Messages that wait, put into another order, while a turn runs.
fn queue(chat: impl Strategy<Value = u8>) -> impl Strategy<Value = Vec<Step>> {
    let order = vec(0u8..4, 0..4);
    let steered = proptest::option::of(any::<bool>());
    (chat, index(), index(), order, steered, any::<bool>(), 0u8..4).prop_map(
        |(chat, client, text, order, steered, removed, ended)| {
            let queued = |id| dispatch(client, chat, Wish::Queue { id, text, steering: false });
            let mut steps = vec![queued(0), queued(8), queued(0), queued(10)];
            steps.push(dispatch(client, chat, Wish::Reorder { order }));
            if let Some(taken_in) = steered {
                steps.push(dispatch(client, chat, Wish::Queue { id: 0, text, steering: true }));
                steps.extend(taken_in.then(|| run(chat, Happening::Steered(0))));
            }
            steps.extend(removed.then(|| dispatch(client, chat, Wish::Unqueue { id: 1, steering: false })));
            steps.extend((0..ended).map(|_| run(chat, Happening::Ended(0))));
            steps
        },
    )
}

/// Another chat that everybody follows, with a turn in it and one in its neighbour.
fn chats() -> impl Strategy<Value = Vec<Step>> {
    (open_chat(), index(), index(), any::<bool>()).prop_map(|(opened, client, text, moved)| {
        let mut steps = vec![opened];
        steps.extend((0..12).map(|channel| Step::Subscribe {
            client: channel % 3,
            channel,
            turns: None,
            delay: None,
        }));
        let start = |chat| dispatch(client, chat, Wish::Start { turn: 0, text, queued: None });
        steps.extend([start(0), start(1), Step::Report { chat: 0, report: Report::Opened }]);
        steps.push(run(0, Happening::Text { thought: false, text }));
        steps.push(run(1, Happening::Text { thought: false, text }));
        if moved {
            steps.push(run(0, Happening::Ended(0)));
            steps.push(Step::MoveChat { client, chat: 0, to: text, after: None });
        }
        steps
    })
}

/// A client with a window, turns that end, and one of them that is named.
fn window(chat: impl Strategy<Value = u8>) -> impl Strategy<Value = Vec<Step>> {
    let away = proptest::option::weighted(0.4, cursor());
    let fetched = vec(from(), 0..3);
    let named = proptest::option::weighted(0.8, 0u8..8);
    (chat, index(), 1u8..6, 0u8..4, fetched, named, away).prop_map(
        |(chat, client, count, turns, fetched, named, away)| {
            let mut steps = Vec::new();
            for text in 0..count {
                steps.push(dispatch(client, chat, Wish::Start { turn: 0, text, queued: None }));
                steps.push(Step::Report { chat, report: Report::Opened });
                steps.push(run(chat, Happening::Ended(text % 2)));
            }
            steps.extend((0..6).map(|channel| Step::Subscribe {
                client,
                channel,
                turns: Some(turns),
                delay: None,
            }));
            steps.push(Step::Read { client, bytes: u16::MAX });
            steps.extend(fetched.into_iter().map(|from| Step::Fetch { client, chat, from }));
            let truncate = dispatch(client, chat, Wish::Truncate { turn: named });
            if let Some(cursor) = away {
                steps.push(Step::Read { client, bytes: u16::MAX });
                steps.push(Step::Lose { client, heard: true });
                steps.push(dispatch(client.wrapping_add(1), chat, Wish::Truncate { turn: named }));
                steps.push(Step::Reconnect { client, cursor, leave_out: 0 });
            }
            steps.push(truncate);
            steps.push(dispatch(client, chat, Wish::Resume { turn: 0 }));
            steps
        },
    )
}

/// A client that misses something.
fn absence() -> impl Strategy<Value = Vec<Step>> {
    let missed = vec(
        prop_oneof![3 => report().prop_map(|report| Step::Report { chat: 0, report }), 1 => step()],
        0..9,
    );
    (index(), any::<u16>(), missed, any::<bool>(), cursor()).prop_map(
        |(client, bytes, missed, heard, cursor)| {
            let mut steps = vec![Step::Read { client, bytes }];
            steps.extend(missed);
            steps.insert(steps.len().div_ceil(2), Step::Lose { client, heard });
            steps.push(Step::Reconnect { client, cursor, leave_out: 0 });
            steps
        },
    )
}

/// A tool call that runs on a client, which may go away meanwhile and come back.
fn errand(chat: impl Strategy<Value = u8>) -> impl Strategy<Value = Vec<Step>> {
    let away =
        proptest::option::weighted(0.6, (any::<bool>(), any::<bool>(), any::<bool>(), cursor(), 0u8..4));
    let begun = proptest::option::weighted(0.5, proptest::option::of(index()));
    (chat, index(), index(), index(), away, begun, any::<bool>(), any::<bool>()).prop_map(
        |(chat, client, call, tools, away, begun, success, review)| {
            let mut steps = vec![dispatch(client, chat, Wish::TakePart { tools })];
            if let Some(asks) = begun {
                steps.push(run(chat, Happening::ClientToolStarted { call, tool: tools }));
                steps.extend(asks.map(|gate| run(chat, Happening::Ready { call, gate })));
            }
            steps.extend([
                run(chat, Happening::ClientTool { call, tool: tools }),
                dispatch(client, chat, Wish::Stream { call: 0, text: call }),
            ]);
            if let Some((heard, early, late, cursor, leave_out)) = away {
                steps.push(Step::Lose { client, heard });
                steps.extend(early.then_some(Step::Timers));
                steps.push(Step::Reconnect { client, cursor, leave_out });
                steps.extend(late.then_some(Step::Timers));
            }
            steps.push(dispatch(client, chat, Wish::Deliver { call: 0, success, review }));
            steps.extend(review.then(|| dispatch(client, chat, Wish::Review { call: 0, approved: success })));
            steps
        },
    )
}

/// Generates annotations of several clients, one of which is subscribed and disconnects meanwhile.
fn remarks(chat: impl Strategy<Value = u8>) -> impl Strategy<Value = Vec<Step>> {
    let said = vec((index(), 0u8..7, 0u8..4, 0u8..4), 1..9);
    (chat, index(), said, proptest::option::of((any::<bool>(), cursor()))).prop_map(
        |(chat, client, said, away)| {
            let mut steps = Vec::new();
            steps.extend((0..9).map(|channel| Step::Subscribe { client, channel, turns: None, delay: None }));
            let half = said.len() / 2;
            for (at, (by, how, annotation, entry)) in said.into_iter().enumerate() {
                if let Some((heard, _)) = away.filter(|_| at == half) {
                    steps.push(Step::Lose { client, heard });
                }
                steps.push(dispatch(by, chat, Wish::Annotate { how, annotation, entry }));
            }
            steps.extend(away.map(|(_, cursor)| Step::Reconnect { client, cursor, leave_out: 0 }));
            steps
        },
    )
}

/// An index; small ones are more likely, and 0 is what shrinking ends at.
fn index() -> impl Strategy<Value = u8> {
    prop_oneof![6 => 0u8..3, 2 => 0u8..16, 1 => any::<u8>()]
}

fn subscribe() -> impl Strategy<Value = Step> {
    let turns = proptest::option::weighted(0.7, 0u8..4);
    let delay = proptest::option::weighted(0.5, prop_oneof![1 => Just(0u16), 3 => any::<u16>()]);
    (index(), index(), turns, delay).prop_map(|(client, channel, turns, delay)| Step::Subscribe {
        client,
        channel,
        turns,
        delay,
    })
}

fn from() -> impl Strategy<Value = From> {
    prop_oneof![4 => Just(From::Own), 2 => Just(From::Next), 1 => Just(From::Elsewhere)]
}

fn cursor() -> impl Strategy<Value = Cursor> {
    prop_oneof![
        8 => Just(Cursor::Own),
        2 => index().prop_map(Cursor::Older),
        1 => index().prop_map(Cursor::Beyond),
        1 => index().prop_map(Cursor::Stranger),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let time = prop_oneof![4 => Just(false), 1 => Just(true)];
    let damage = proptest::option::weighted(0.12, damage());
    prop_oneof![
        3 => (any::<u16>(), time).prop_map(|(ms, back)| Step::Time { ms, back }),
        3 => Just(Step::Settle),
        1 => Just(Step::Timers),
        5 => (index(), any::<u16>()).prop_map(|(client, bytes)| Step::Read { client, bytes }),
        1 => Just(Step::Compare),
        2 => (index(), any::<bool>()).prop_map(|(client, heard)| Step::Lose { client, heard }),
        4 => (index(), cursor(), index())
            .prop_map(|(client, cursor, leave_out)| Step::Reconnect { client, cursor, leave_out }),
        1 => (index(), index()).prop_map(|(client, channels)| Step::Initialize { client, channels }),
        5 => subscribe(),
        3 => (index(), index(), from()).prop_map(|(client, chat, from)| Step::Fetch { client, chat, from }),
        2 => (index(), index()).prop_map(|(client, channel)| Step::Unsubscribe { client, channel }),
        2 => (index(), index(), index()).prop_map(|(client, name, how)| Step::Create { client, name, how }),
        1 => (index(), index()).prop_map(|(client, session)| Step::Dispose { client, session }),
        4 => open_chat(),
        2 => (index(), index()).prop_map(|(client, chat)| Step::CloseChat { client, chat }),
        3 => (index(), index(), index(), proptest::option::of(index()))
            .prop_map(|(client, chat, to, after)| Step::MoveChat { client, chat, to, after }),
        1 => (index(), index()).prop_map(|(client, limit)| Step::List { client, limit }),
        24 => (index(), index(), wish(), damage)
            .prop_map(|(client, chat, wish, damage)| Step::Dispatch { client, chat, wish, damage }),
        36 => (index(), report()).prop_map(|(chat, report)| Step::Report { chat, report }),
        1 => (index(), index()).prop_map(|(client, which)| Step::Nonsense { client, which }),
    ]
}

fn open_chat() -> impl Strategy<Value = Step> {
    (index(), index(), index(), index(), index(), index()).prop_map(
        |(client, session, name, how, from, turn)| Step::OpenChat { client, session, name, how, from, turn },
    )
}

fn wish() -> impl Strategy<Value = Wish> {
    let flags = || (any::<bool>(), any::<bool>());
    let maybe = || proptest::option::weighted(0.3, index());
    prop_oneof![
        8 => (index(), index(), proptest::option::weighted(0.1, index()))
            .prop_map(|(turn, text, queued)| Wish::Start { turn, text, queued }),
        2 => Just(Wish::Cancel),
        2 => index().prop_map(|turn| Wish::Resume { turn }),
        2 => maybe().prop_map(|turn| Wish::Truncate { turn }),
        4 => (index(), any::<bool>(), maybe())
            .prop_map(|(call, approved, option)| Wish::Decide { call, approved, option }),
        2 => (index(), any::<bool>()).prop_map(|(call, approved)| Wish::Review { call, approved }),
        3 => (index(), index()).prop_map(|(question, answer)| Wish::DraftAnswer { question, answer }),
        3 => (index(), index(), maybe())
            .prop_map(|(question, response, answer)| Wish::Answer { question, response, answer }),
        5 => (index(), index(), prop_oneof![3 => Just(false), 1 => Just(true)])
            .prop_map(|(id, text, steering)| Wish::Queue { id, text, steering }),
        1 => (index(), any::<bool>()).prop_map(|(id, steering)| Wish::Unqueue { id, steering }),
        2 => vec(index(), 0..4).prop_map(|order| Wish::Reorder { order }),
        1 => maybe().prop_map(|text| Wish::Draft { text }),
        2 => flags().prop_map(|(archived, set)| Wish::ChatFlag { archived, set }),
        1 => index().prop_map(|title| Wish::RenameChat { title }),
        2 => (0u8..6, any::<bool>()).prop_map(|(value, replace)| Wish::Configure { value, replace }),
        3 => (0u8..8, prop_oneof![3 => Just(false), 1 => Just(true)])
            .prop_map(|(value, replace)| Wish::ConfigureHost { value, replace }),
        2 => flags().prop_map(|(archived, set)| Wish::SessionFlag { archived, set }),
        1 => index().prop_map(|title| Wish::RenameSession { title }),
        1 => any::<bool>().prop_map(|other| Wish::DefaultChat { other }),
        3 => index().prop_map(|tools| Wish::TakePart { tools }),
        1 => Just(Wish::LeaveOff),
        1 => (index(), index()).prop_map(|(call, text)| Wish::Stream { call, text }),
        3 => (index(), any::<bool>(), any::<bool>())
            .prop_map(|(call, success, review)| Wish::Deliver { call, success, review }),
        4 => (index(), index(), index())
            .prop_map(|(how, directory, other)| Wish::WorkIn { how, directory, other }),
        4 => (index(), index(), index())
            .prop_map(|(how, annotation, entry)| Wish::Annotate { how, annotation, entry }),
        3 => (index(), index()).prop_map(|(how, server)| Wish::Serve { how, server }),
        2 => any::<u8>().prop_map(|which| Wish::Any { which }),
    ]
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        index().prop_map(Damage::Channel),
        Just(Damage::Turn),
        index().prop_map(Damage::Missing),
        index().prop_map(Damage::Retyped),
    ]
}

fn report() -> impl Strategy<Value = Report> {
    let older = prop_oneof![12 => Just(0u8), 1 => 1u8..4];
    prop_oneof![
        8 => Just(Report::Opened),
        1 => (index(), index()).prop_map(|(done, of)| Report::Opening { done, of }),
        1 => Just(Report::OpenFailed),
        1 => Just(Report::Died),
        1 => Just(Report::Left),
        3 => any::<bool>().prop_map(Report::Begins),
        1 => index().prop_map(Report::Handle),
        1 => index().prop_map(Report::Title),
        2 => (index(), proptest::option::weighted(0.7, index()))
            .prop_map(|(name, value)| Report::Note { name, value }),
        2 => (index(), proptest::option::weighted(0.7, index()))
            .prop_map(|(name, page)| Report::Canvas { name, page }),
        3 => index().prop_map(Report::Servers),
        40 => (older.clone(), happening()).prop_map(|(older, event)| Report::Turn { older, event }),
        5 => (older, happening(), index()).prop_map(|(older, event, besides)| {
            Report::Turn { older, event: Happening::With(Box::new(event), besides) }
        }),
    ]
}

fn happening() -> impl Strategy<Value = Happening> {
    let maybe = || proptest::option::weighted(0.7, index());
    prop_oneof![
        1 => (any::<bool>(), index()).prop_map(|(thought, text)| Happening::Part { thought, text }),
        6 => (any::<bool>(), index()).prop_map(|(thought, text)| Happening::Text { thought, text }),
        2 => maybe().prop_map(Happening::Activity),
        1 => index().prop_map(Happening::Notice),
        1 => index().prop_map(Happening::Usage),
        4 => index().prop_map(|call| Happening::Started { call }),
        2 => (index(), index()).prop_map(|(call, text)| Happening::Input { call, text }),
        6 => (index(), index()).prop_map(|(call, gate)| Happening::Ready { call, gate }),
        2 => (index(), index()).prop_map(|(call, text)| Happening::Content { call, text }),
        2 => (index(), index()).prop_map(|(call, tool)| Happening::ClientToolStarted { call, tool }),
        3 => (index(), index()).prop_map(|(call, tool)| Happening::ClientTool { call, tool }),
        4 => (index(), any::<bool>(), any::<bool>())
            .prop_map(|(call, success, review)| Happening::Done { call, success, review }),
        3 => (index(), index()).prop_map(|(id, shape)| Happening::Question { id, shape }),
        1 => index().prop_map(|id| Happening::QuestionWithdrawn { id }),
        2 => index().prop_map(Happening::Steered),
        1 => index().prop_map(Happening::NotSteered),
        3 => index().prop_map(Happening::Ended),
    ]
}

/// One line a step, to be read.
impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clients, window, merge, steps, end } = self;
        writeln!(
            f,
            "{clients} clients, a window of {window} actions, merging: {merge}, at the end: {end:?}"
        )?;
        steps.iter().enumerate().try_for_each(|(at, step)| writeln!(f, "  {at:3}  {step:?}"))
    }
}
