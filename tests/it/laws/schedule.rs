//! What can happen: a schedule is a list of steps, each meaningful whatever came before it.
//!
//! Owns: the steps and how they are chosen. Every index is taken modulo what there is when the step is
//! carried out, so that a step can be left out and the rest still means something: that is what makes a
//! failing case shrink to a small one.
//! Never: knows the host.

use std::fmt;

use proptest::collection::vec;
use proptest::prelude::*;

/// Everything that happens to one host.
pub struct Schedule {
    /// How many clients there are.
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
    /// Nobody can answer any more; then agents finish.
    Drain,
    /// The same, and the time is up before they do.
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
    Subscribe {
        client: u8,
        channel: u8,
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
    /// What it has really seen.
    Own,
    /// What it had seen some time ago: it has more than it says.
    Older(u8),
    /// One from elsewhere, under its own id. It can be known for what it is.
    Beyond(u8),
    /// As a client that nobody has heard of.
    Stranger(u8),
}

/// What a client asks for.
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
    /// Some action of the client's table, or of the server's, or of nobody's, without a sensible payload.
    Any {
        which: u8,
    },
}

/// What is wrong with an action.
#[derive(Debug, Clone, Copy)]
pub enum Damage {
    /// It is said on another channel.
    Channel(u8),
    /// It names another turn.
    Turn,
    /// A member is left out.
    Missing(u8),
    /// A member is of another type.
    Retyped(u8),
}

/// What a backend reports.
#[derive(Debug, Clone)]
pub enum Report {
    Opened,
    OpenFailed,
    Died,
    Title(u8),
    /// About the newest run, or an older one.
    Turn {
        older: u8,
        event: Happening,
    },
}

/// What happens in a run.
#[derive(Debug, Clone)]
pub enum Happening {
    Part { thought: bool, text: u8 },
    Text { thought: bool, text: u8 },
    Activity(Option<u8>),
    Usage(u8),
    Started { call: u8 },
    Input { call: u8, text: u8 },
    Ready { call: u8, gate: u8 },
    Content { call: u8, text: u8 },
    Done { call: u8, success: bool, review: bool },
    Question { id: u8, shape: u8 },
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
    (2usize..5, window, any::<bool>(), vec(step(), 1..140), end)
        .prop_map(|(clients, window, merge, steps, end)| Schedule { clients, window, merge, steps, end })
}

/// An index; small ones are more likely, and 0 is what shrinking ends at.
fn index() -> impl Strategy<Value = u8> {
    prop_oneof![6 => 0u8..3, 2 => 0u8..16, 1 => any::<u8>()]
}

fn step() -> impl Strategy<Value = Step> {
    let time = prop_oneof![4 => Just(false), 1 => Just(true)];
    let cursor = prop_oneof![
        6 => Just(Cursor::Own),
        2 => index().prop_map(Cursor::Older),
        1 => index().prop_map(Cursor::Beyond),
        1 => index().prop_map(Cursor::Stranger),
    ];
    let damage = proptest::option::weighted(0.12, damage());
    prop_oneof![
        3 => (any::<u16>(), time).prop_map(|(ms, back)| Step::Time { ms, back }),
        3 => Just(Step::Settle),
        1 => Just(Step::Timers),
        5 => (index(), any::<u16>()).prop_map(|(client, bytes)| Step::Read { client, bytes }),
        1 => Just(Step::Compare),
        2 => (index(), any::<bool>()).prop_map(|(client, heard)| Step::Lose { client, heard }),
        4 => (index(), cursor, index())
            .prop_map(|(client, cursor, leave_out)| Step::Reconnect { client, cursor, leave_out }),
        1 => (index(), index()).prop_map(|(client, channels)| Step::Initialize { client, channels }),
        5 => (index(), index()).prop_map(|(client, channel)| Step::Subscribe { client, channel }),
        2 => (index(), index()).prop_map(|(client, channel)| Step::Unsubscribe { client, channel }),
        3 => (index(), index(), index()).prop_map(|(client, name, how)| Step::Create { client, name, how }),
        1 => (index(), index()).prop_map(|(client, session)| Step::Dispose { client, session }),
        1 => (index(), index()).prop_map(|(client, limit)| Step::List { client, limit }),
        24 => (index(), index(), wish(), damage)
            .prop_map(|(client, chat, wish, damage)| Step::Dispatch { client, chat, wish, damage }),
        36 => (index(), report()).prop_map(|(chat, report)| Step::Report { chat, report }),
        1 => (index(), index()).prop_map(|(client, which)| Step::Nonsense { client, which }),
    ]
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
        2 => flags().prop_map(|(archived, set)| Wish::SessionFlag { archived, set }),
        1 => index().prop_map(|title| Wish::RenameSession { title }),
        1 => any::<bool>().prop_map(|other| Wish::DefaultChat { other }),
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
        5 => Just(Report::Opened),
        1 => Just(Report::OpenFailed),
        1 => Just(Report::Died),
        1 => index().prop_map(Report::Title),
        28 => (older, happening()).prop_map(|(older, event)| Report::Turn { older, event }),
    ]
}

fn happening() -> impl Strategy<Value = Happening> {
    let maybe = || proptest::option::weighted(0.7, index());
    prop_oneof![
        1 => (any::<bool>(), index()).prop_map(|(thought, text)| Happening::Part { thought, text }),
        6 => (any::<bool>(), index()).prop_map(|(thought, text)| Happening::Text { thought, text }),
        2 => maybe().prop_map(Happening::Activity),
        1 => index().prop_map(Happening::Usage),
        4 => index().prop_map(|call| Happening::Started { call }),
        2 => (index(), index()).prop_map(|(call, text)| Happening::Input { call, text }),
        6 => (index(), index()).prop_map(|(call, gate)| Happening::Ready { call, gate }),
        2 => (index(), index()).prop_map(|(call, text)| Happening::Content { call, text }),
        4 => (index(), any::<bool>(), any::<bool>())
            .prop_map(|(call, success, review)| Happening::Done { call, success, review }),
        3 => (index(), index()).prop_map(|(id, shape)| Happening::Question { id, shape }),
        4 => index().prop_map(Happening::Ended),
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
