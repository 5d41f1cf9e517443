//! Decisions about an agent's questions and the permissions that it asks for.
//!
//! Owns: which calls and questions of the turn are decided, and the call that a person is asked
//! about; every call and question gets a decision that the host takes.
//! Never: talks to the host or the person itself: it says what is to be sent and printed.

use std::collections::{BTreeMap, BTreeSet};

use ahp_types::state::{
    ChatInputQuestion, ChatInputRequest, ConfirmationOption, ConfirmationOptionKind, ResponsePart,
    ToolCallCancellationReason, ToolCallState,
};
use serde_json::{json, Value};

use super::answers::Answers;
use super::policy::{Policy, PolicyRequest};
use super::summary::{DecidedBy, PermissionSummary, QuestionSummary};
use crate::wire::tool_calls::{tool_call_id, OPTIONS};

/// Kind of an option that grants one call.
const ALLOW_ONCE: &str = "allow_once";

/// Decisions of a run.
#[derive(Debug)]
pub struct RunDecisions<'a> {
    policy: Policy,
    answers: &'a Answers,
    /// Calls and questions that were decided.
    decided: BTreeSet<DecisionKey>,
    /// Call that the person at the terminal is asked about.
    asked: Option<AskedCall>,
    /// Decisions in flight, by the numbers of their actions.
    sent: BTreeMap<i64, (DecisionKey, DecisionSummary)>,
    /// Reasons why the host has not taken the permission for a call.
    refused: BTreeMap<DecisionKey, String>,
    /// Reasons why the host has not taken the answers to a question, by its texts: it asks again
    /// under another id.
    refused_answers: BTreeMap<Vec<String>, String>,
}

/// Result of looking at the open calls and questions.
#[derive(Debug)]
pub enum DecisionStep {
    /// Text for the person.
    Note(String),
    /// Decision that is to be sent.
    Send(Box<Decision>),
}

/// Decision about a call or a question.
#[derive(Debug)]
pub struct Decision {
    /// Action on the chat.
    pub action: Value,
    /// Entry of the summary.
    pub summary: DecisionSummary,
    key: DecisionKey,
}

/// Subject of a decision.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum DecisionKey {
    /// Call with its request: a call may ask for its result, too, and while it waits, the agent may
    /// change its request, so that a decision about the one before does not hold.
    Call { id: String, is_result: bool, request: PolicyRequest },
    /// Id of a question.
    Question(String),
}

/// Entry of the summary about a decision.
#[derive(Debug, Clone, PartialEq)]
pub enum DecisionSummary {
    /// About a permission.
    Permission(PermissionSummary),
    /// About a question.
    Question(QuestionSummary),
}

/// Call that waits for a decision, with its options.
#[derive(Debug, Clone, PartialEq)]
struct AskedCall {
    id: String,
    request: PolicyRequest,
    options: Vec<ConfirmationOption>,
    /// Set unless the agent offers no option that grants this call alone.
    offers_once: bool,
    /// Set if the call has run, and its result is asked about.
    is_result: bool,
}

/// Verdict on a call.
#[derive(Debug, Default)]
struct CallVerdict {
    allowed: bool,
    by: DecidedBy,
    rule: Option<String>,
    reason: Option<String>,
    option: Option<String>,
}

impl<'a> RunDecisions<'a> {
    /// Creates the decisions of a run by its rules and answers.
    pub fn new(policy: Policy, answers: &'a Answers) -> Self {
        Self {
            policy,
            answers,
            decided: BTreeSet::new(),
            asked: None,
            sent: BTreeMap::new(),
            refused: BTreeMap::new(),
            refused_answers: BTreeMap::new(),
        }
    }

    /// Decides by these rules from now on.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// Returns whether a person is asked at the moment.
    pub fn is_asking(&self) -> bool {
        self.asked.is_some()
    }

    /// Stops asking the person.
    pub fn stop_asking(&mut self) {
        self.asked = None;
    }

    /// Decides about the calls and questions among the parts of a turn. `has_person` returns
    /// whether a person can be asked.
    pub fn decide(
        &mut self,
        turn: &str,
        parts: &[ResponsePart],
        mut has_person: impl FnMut() -> bool,
    ) -> Vec<DecisionStep> {
        let (calls, questions) = self.waiting(parts);
        let mut steps = Vec::new();
        if let Some(asked) = self.asked.take_if(|asked| !calls.contains(asked)) {
            let note = match calls.iter().any(|call| call.id == asked.id) {
                true => "(the call asks for something else now)",
                false => "(decided elsewhere)",
            };
            steps.push(DecisionStep::Note(note.to_owned()));
        }
        // An agent may use an id again, once the decision has arrived.
        let is_open = |key: &DecisionKey| {
            calls.iter().any(|call| call.key() == *key) || questions.iter().any(|it| key_of(it) == *key)
        };
        self.decided.retain(is_open);
        self.refused.retain(|key, _| is_open(key));
        for call in calls {
            if self.decided.contains(&call.key()) || self.asked.as_ref() == Some(&call) {
                continue;
            }
            match self.verdict(&call) {
                Some(verdict) => steps.extend(self.confirm(turn, call, verdict)),
                None if self.asked.is_some() => {}
                None if has_person() => {
                    steps.push(DecisionStep::Note(call.question()));
                    self.asked = Some(call);
                }
                None => steps.extend(self.confirm(turn, call, CallVerdict::default())),
            }
        }
        for question in questions {
            if !self.decided.contains(&key_of(&question)) {
                steps.extend(self.answer(turn, &question));
            }
        }
        steps
    }

    /// Returns the calls and questions of a turn that wait.
    fn waiting(&self, parts: &[ResponsePart]) -> (Vec<AskedCall>, Vec<ChatInputRequest>) {
        let mut calls = Vec::new();
        let mut questions = Vec::new();
        for part in parts {
            match part {
                ResponsePart::ToolCall(part) => {
                    let request = self.policy.request_of(&part.tool_call);
                    calls.extend(request.map(|request| AskedCall::of(&part.tool_call, request)));
                }
                ResponsePart::InputRequest(part) if part.response.is_none() => {
                    questions.push(part.request.clone());
                }
                _ => {}
            }
        }
        (calls, questions)
    }

    /// Returns the verdict of the rules on a call; `None` if no rule applies.
    fn verdict(&self, call: &AskedCall) -> Option<CallVerdict> {
        if let Some(reason) = self.refused.get(&call.key()) {
            let reason = Some(format!("the host did not take the permission: {reason}"));
            return Some(CallVerdict { reason, ..CallVerdict::default() });
        }
        let judgement = self.policy.judge(&call.request)?;
        let (by, rule) = (DecidedBy::Rule, Some(judgement.rule));
        let (allowed, reason, option) = match judgement.allowed {
            false => (false, judgement.reason, None),
            true => match call.granting_option(self.policy.grants_all()) {
                Ok(option) => (true, None, option),
                Err(reason) => (false, Some(reason.to_owned()), None),
            },
        };
        Some(CallVerdict { allowed, by, rule, reason, option })
    }

    /// Decides about the call that the person was asked about, by the line that was typed.
    pub fn decide_as_typed(&mut self, turn: &str, line: Option<&str>) -> Vec<DecisionStep> {
        let Some(call) = self.asked.take() else { return Vec::new() };
        let line = line.unwrap_or_default().trim();
        let chosen = line.parse::<usize>().ok().and_then(|at| call.options.get(at.checked_sub(1)?)).cloned();
        let allowed = match &chosen {
            Some(option) => option.kind == ConfirmationOptionKind::Approve,
            None => ["y", "yes"].contains(&line.to_lowercase().as_str()),
        };
        let mut verdict = CallVerdict { allowed, by: DecidedBy::User, ..CallVerdict::default() };
        match chosen {
            Some(option) => verdict.option = Some(option.id),
            None if allowed => match call.granting_option(false) {
                Ok(option) => verdict.option = option,
                Err(reason) => (verdict.allowed, verdict.reason) = (false, Some(reason.to_owned())),
            },
            None => {}
        }
        self.confirm(turn, call, verdict)
    }

    fn confirm(&mut self, turn: &str, call: AskedCall, verdict: CallVerdict) -> Vec<DecisionStep> {
        let CallVerdict { allowed, by, rule, reason, option } = verdict;
        let mut steps = Vec::new();
        if !allowed && (by != DecidedBy::User || reason.is_some()) {
            let rule = rule.as_ref().map(|rule| format!("rule `{rule}`"));
            let why: Vec<String> = rule.into_iter().chain(reason.clone()).collect();
            let why = if why.is_empty() { "no rule allows it".to_owned() } else { why.join(": ") };
            let what = call.request.command.as_ref().unwrap_or(&call.request.title);
            let what = in_one_line(what);
            let note = format!("denied: {}: {what} ({why})", in_one_line(&call.request.display_name));
            steps.push(DecisionStep::Note(note));
        }
        let mut action = json!({ "turnId": turn, "toolCallId": call.id, "approved": allowed });
        action["type"] = match call.is_result {
            true => "chat/toolCallResultConfirmed".into(),
            false => "chat/toolCallConfirmed".into(),
        };
        if !call.is_result {
            if !allowed {
                action["reason"] = "denied".into();
            }
            if let Some(option) = option {
                action["selectedOptionId"] = option.into();
            }
        }
        let key = call.key();
        let summary =
            PermissionSummary { rule, reason, ..PermissionSummary::of(turn, call.request, allowed, by) };
        steps.push(self.decision(key, action, DecisionSummary::Permission(summary)));
        steps
    }

    fn answer(&mut self, turn: &str, request: &ChatInputRequest) -> Vec<DecisionStep> {
        let texts = request.questions.iter().flatten().filter_map(text_of_question);
        let texts: Vec<String> = request.message.iter().cloned().chain(texts).collect();
        let refusal = self.refused_answers.get(&texts);
        let answers = self.answers.to(request).filter(|_| refusal.is_none());
        let mut action =
            json!({ "type": "chat/inputCompleted", "requestId": request.id, "response": "decline" });
        let mut steps = Vec::new();
        let answered = answers.is_some();
        match answers {
            Some(answers) => {
                action["response"] = "accept".into();
                action["answers"] = answers.into();
            }
            None => {
                let why = refusal.map_or("no answer is given", String::as_str);
                steps.push(DecisionStep::Note(format!("declined: {} ({why})", texts.join(" "))));
            }
        }
        let summary = QuestionSummary { turn: turn.to_owned(), texts, answered };
        steps.push(self.decision(key_of(request), action, DecisionSummary::Question(summary)));
        steps
    }

    fn decision(&mut self, key: DecisionKey, action: Value, summary: DecisionSummary) -> DecisionStep {
        self.decided.insert(key.clone());
        DecisionStep::Send(Box::new(Decision { action, summary, key }))
    }

    /// Notes that a decision was sent as the action of this number.
    pub fn was_sent(&mut self, number: i64, decision: Decision) {
        self.sent.insert(number, (decision.key, decision.summary));
    }

    /// Returns whether a permission for another request of a call was sent: the host may have taken
    /// it for the current one. A call that is denied by now does not run.
    fn has_allowed_other_request(&self, key: &DecisionKey, parts: &[ResponsePart]) -> bool {
        let DecisionKey::Call { id, is_result, request } = key else { return false };
        let allows_other = |(sent, summary): &(DecisionKey, DecisionSummary)| {
            let DecisionKey::Call { id: sent, is_result: of_result, request: other } = sent else {
                return false;
            };
            sent == id && of_result == is_result && other != request && !is_denial(summary)
        };
        let is_denied = |part: &ResponsePart| match part {
            ResponsePart::ToolCall(part) if tool_call_id(&part.tool_call) == id => match &part.tool_call {
                ToolCallState::Cancelled(call) => call.reason != ToolCallCancellationReason::Skipped,
                _ => false,
            },
            _ => false,
        };
        self.sent.values().any(allows_other) && !parts.iter().any(is_denied)
    }

    /// Returns the entry of a decision that the host has refused; `None` if the action was no
    /// decision. A call or question that still waits is decided again: denied or declined.
    ///
    /// # Errors
    /// When the host refuses the second decision about a call that still waits, to decline a
    /// question that does, or to deny the new request of a call that was allowed before.
    pub fn was_refused(
        &mut self,
        number: i64,
        reason: &str,
        parts: &[ResponsePart],
    ) -> Option<Result<DecisionSummary, String>> {
        let (key, summary) = self.sent.remove(&number)?;
        self.decided.remove(&key);
        let (calls, questions) = self.waiting(parts);
        let still_waits = calls.iter().any(|call| call.key() == key);
        if is_denial(&summary) && !still_waits && self.has_allowed_other_request(&key, parts) {
            let (DecisionKey::Call { id, .. } | DecisionKey::Question(id)) = key;
            return Some(Err(format!(
                "the call `{id}` was allowed, then asked for something that is denied, and the host \
                 does not take the denial: {reason}"
            )));
        }
        let before = match &summary {
            DecisionSummary::Permission(_) if still_waits => {
                self.refused.insert(key.clone(), reason.to_owned())
            }
            // Before the refusal arrives, the same answers may be on their way again.
            DecisionSummary::Question(question) if question.answered => {
                self.refused_answers.insert(question.texts.clone(), reason.to_owned());
                None
            }
            DecisionSummary::Question(_) => {
                questions.iter().any(|it| key_of(it) == key).then(|| reason.to_owned())
            }
            // Another client has decided first, or the call asks for something else.
            DecisionSummary::Permission(_) => None,
        };
        Some(match before {
            None => Ok(summary),
            Some(_) => {
                let (DecisionKey::Call { id, .. } | DecisionKey::Question(id)) = key;
                Err(format!("the host takes no decision about `{id}`: {reason}"))
            }
        })
    }
}

/// Returns whether a decision denies a permission.
fn is_denial(decision: &DecisionSummary) -> bool {
    matches!(decision, DecisionSummary::Permission(permission) if !permission.allowed)
}

impl AskedCall {
    fn of(call: &ToolCallState, request: PolicyRequest) -> Self {
        let (options, meta) = match call {
            ToolCallState::PendingConfirmation(call) => {
                (call.options.clone().unwrap_or_default(), call.meta.as_ref())
            }
            _ => (Vec::new(), None),
        };
        let kinds = meta.and_then(|meta| meta.get(OPTIONS)).and_then(Value::as_object);
        let offers_once = kinds.is_none_or(|kinds| kinds.values().any(|kind| kind["kind"] == ALLOW_ONCE));
        let is_result = !matches!(call, ToolCallState::PendingConfirmation(_));
        Self { id: tool_call_id(call).to_owned(), request, options, offers_once, is_result }
    }

    /// Returns the key of the decision.
    fn key(&self) -> DecisionKey {
        let Self { id, is_result, request, .. } = self.clone();
        DecisionKey::Call { id, is_result, request }
    }

    /// Returns the option that grants the call; `None` where the host chooses the one for this call
    /// alone. An option for later calls, too, is chosen only if those are granted anyway.
    ///
    /// # Errors
    /// With the reason, when the agent offers none that fits.
    fn granting_option(&self, grants_all: bool) -> Result<Option<String>, &'static str> {
        if self.options.is_empty() || self.offers_once {
            return Ok(None);
        }
        let mut options = self.options.iter();
        match options.find(|option| option.kind == ConfirmationOptionKind::Approve) {
            None => Err("the agent offers no permission"),
            Some(option) if grants_all => Ok(Some(option.id.clone())),
            Some(_) => Err("the agent offers no permission for this call alone"),
        }
    }

    /// Returns the question to the person.
    fn question(&self) -> String {
        let request = &self.request;
        let mut text =
            format!("{} asks: {}", in_one_line(&request.display_name), in_one_line(&request.title));
        if let Some(command) = request.command.as_ref().filter(|command| **command != request.title) {
            text += &format!("\n  {}", in_one_line(command));
        }
        for path in request.real_paths() {
            text += &format!("\n  {}", in_one_line(&path.to_string_lossy()));
        }
        let options: Vec<String> = match self.options.as_slice() {
            [] => vec!["y: yes".to_owned(), "n: no".to_owned()],
            options => {
                let label = |(option, at): (&ConfirmationOption, usize)| {
                    format!("{at}: {}", in_one_line(&option.label))
                };
                options.iter().zip(1..).map(label).collect()
            }
        };
        text += &format!("\n{} (other input: no)", options.join(", "));
        text
    }
}

/// Returns a text of the agent without line ends: it must not continue the question to a person.
fn in_one_line(text: &str) -> String {
    text.split(['\n', '\r']).collect::<Vec<_>>().join(" ⏎ ")
}

/// Returns the key of the decision about a question.
fn key_of(question: &ChatInputRequest) -> DecisionKey {
    DecisionKey::Question(question.id.clone())
}

fn text_of_question(question: &ChatInputQuestion) -> Option<String> {
    let question = serde_json::to_value(question).ok()?;
    question["message"].as_str().or_else(|| question["title"].as_str()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn waiting_call(command: &str) -> Vec<ResponsePart> {
        let call = json!({ "status": "pending-confirmation", "toolCallId": "1", "toolName": "bash",
            "displayName": "Bash", "invocationMessage": "Run", "toolInput": command,
            "_meta": { "acp.kind": "execute" } });
        serde_json::from_value(json!([{ "kind": "toolCall", "toolCall": call }])).unwrap()
    }

    /// Returns the notes and the approvals of steps.
    fn told(steps: &[DecisionStep]) -> (String, Vec<Value>) {
        let (mut notes, mut approvals) = (String::new(), Vec::new());
        for step in steps {
            match step {
                DecisionStep::Note(note) => notes += note,
                DecisionStep::Send(decision) => approvals.push(decision.action["approved"].clone()),
            }
        }
        (notes, approvals)
    }

    #[test]
    fn call_that_asks_for_something_else_is_asked_about_again() {
        let (policy, answers) = (Policy::new(Path::new("/repo"), false), Answers::default());
        let mut decisions = RunDecisions::new(policy, &answers);
        let (asked, _) = told(&decisions.decide("t", &waiting_call("rm x"), || true));
        assert!(asked.contains("rm x"), "{asked}");
        assert!(decisions.decide("t", &waiting_call("rm x"), || true).is_empty());
        let (asked, approvals) = told(&decisions.decide("t", &waiting_call("rm y"), || true));
        assert!(asked.contains("rm y") && !asked.contains("elsewhere"), "{asked}");
        assert!(approvals.is_empty());
        let typed = decisions.decide_as_typed("t", Some("y"));
        assert_eq!(told(&typed).1, [json!(true)]);
        let DecisionStep::Send(decision) = &typed[0] else { panic!("{typed:?}") };
        let DecisionSummary::Permission(summary) = &decision.summary else { panic!("{decision:?}") };
        assert_eq!(serde_json::to_value(summary).unwrap()["command"], "rm y");
    }

    #[test]
    fn refused_denial_of_a_call_that_was_allowed_before_is_an_error() {
        let mut policy = Policy::new(Path::new("/repo"), true);
        policy.add(false, "command=rm").unwrap();
        let answers = Answers::default();
        let refused = |commands: &[&str], state: Value| {
            let mut decisions = RunDecisions::new(policy.clone(), &answers);
            for (command, number) in commands.iter().zip(1..) {
                for step in decisions.decide("t", &waiting_call(command), || false) {
                    if let DecisionStep::Send(decision) = step {
                        decisions.was_sent(number, *decision);
                    }
                }
            }
            let mut parts = serde_json::to_value(waiting_call("rm x")).unwrap();
            let call = parts[0]["toolCall"].as_object_mut().unwrap();
            call.extend(state.as_object().unwrap().clone());
            let parts: Vec<ResponsePart> = serde_json::from_value(parts).unwrap();
            decisions.was_refused(commands.len() as i64, "it does not wait", &parts).unwrap()
        };
        let running = json!({ "status": "running", "confirmed": "user-action" });
        let denied = json!({ "status": "cancelled", "reason": "denied" });
        let cancelled = json!({ "status": "cancelled", "reason": "skipped" });
        let why = refused(&["ls x", "rm x"], running.clone()).unwrap_err();
        assert!(why.contains("`1` was allowed") && why.ends_with("it does not wait"), "{why}");
        assert!(refused(&["ls x", "rm x"], denied).is_ok());
        // It may have run until then.
        assert!(refused(&["ls x", "rm x"], cancelled).is_err());
        // Another client has decided first.
        assert!(refused(&["rm y", "rm x"], running.clone()).is_ok());
        assert!(refused(&["rm x"], running).is_ok());
    }

    #[test]
    fn call_that_asks_for_something_else_is_judged_again() {
        let mut policy = Policy::new(Path::new("/repo"), true);
        policy.add(false, "command=rm").unwrap();
        let answers = Answers::default();
        let mut decisions = RunDecisions::new(policy, &answers);
        let mut decide = |command: &str| told(&decisions.decide("t", &waiting_call(command), || false)).1;
        assert_eq!(decide("ls x"), [json!(true)]);
        assert!(decide("ls x").is_empty());
        assert_eq!(decide("rm x"), [json!(false)]);
        assert!(decide("rm x").is_empty());
    }
}
