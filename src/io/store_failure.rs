//! Requests that are received while commits fail.
//!
//! Owns: which held outputs may answer these requests, so that no client waits forever.
//! Never: sends state that the next process would not have.

use crate::host::effects::{ConnectionId, Frame, Output};
use crate::wire::errors::RpcError;
use crate::wire::methods::Method;

/// Failure of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreFailure {
    /// Cause, for people.
    pub reason: String,
    /// Set once the failure has lasted so long that requests are answered with errors.
    pub is_long: bool,
    /// Set if the failure lasts until the process ends.
    pub is_for_good: bool,
}

/// Answer to a request while commits fail.
#[derive(Debug, PartialEq)]
pub enum FailureAnswer {
    /// Output that contains only committed state, or a read that will answer.
    Whole(Output),
    /// Error that replaces a result of this method: whether the change gets stored is unknown.
    Refused(ConnectionId, Frame, Method),
}

impl StoreFailure {
    /// Takes the answers that may go out now. `is_safe` is set if they show only committed state.
    pub fn take_answers(&self, outputs: &mut Vec<Output>, is_safe: bool) -> Vec<FailureAnswer> {
        let is_answer = |output: &Output| match output {
            Output::Frame(_, Frame::Result { .. }) | Output::States(..) => {
                is_safe || self.is_long || self.is_for_good
            }
            Output::Frame(_, Frame::Error { .. })
            | Output::List(..)
            | Output::Resource(..)
            | Output::AgentSessions(..) => true,
            _ => false,
        };
        if !outputs.iter().any(is_answer) {
            return Vec::new();
        }
        let (answers, rest) = outputs.drain(..).partition(is_answer);
        *outputs = rest;
        let answers: Vec<Output> = answers;
        let taken = answers.into_iter().map(|output| match output {
            Output::Frame(connection, Frame::Result { id, method, .. }) if !is_safe => {
                let frame = Frame::Error { id: Some(id), error: self.error() };
                FailureAnswer::Refused(connection, frame, method)
            }
            Output::States(connection, id, states) if !is_safe => {
                let frame = Frame::Error { id: Some(id), error: self.error() };
                FailureAnswer::Refused(connection, frame, states.method)
            }
            output => FailureAnswer::Whole(output),
        });
        taken.collect()
    }

    fn error(&self) -> RpcError {
        if self.is_for_good {
            RpcError::unavailable(&self.reason)
        } else {
            let reason = &self.reason;
            RpcError::unavailable(format_args!(
                "{reason}; the request takes effect once the store works again"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::host::effects::Page;
    use crate::wire::rpc::RequestId;

    const CLIENT: ConnectionId = ConnectionId(3);

    fn result(number: u64) -> Output {
        let (id, result) = (RequestId::inner(number), Bytes::from_static(b"null"));
        Output::Frame(CLIENT, Frame::result(id, Method::CreateSession, result))
    }

    fn outputs() -> Vec<Output> {
        let notification = Frame::Notification { method: "root/sessionAdded", params: Bytes::new() };
        let list = Output::List(CLIENT, RequestId::inner(2), Page { after: None, limit: 1 });
        vec![result(1), Output::Frame(CLIENT, notification), list]
    }

    fn trouble(is_long: bool, is_for_good: bool) -> StoreFailure {
        StoreFailure { reason: "the disk is full".to_owned(), is_long, is_for_good }
    }

    #[test]
    fn what_is_safe_answers_at_once_and_what_changes_nothing_too() {
        let mut held = outputs();
        let answers = trouble(false, false).take_answers(&mut held, true);
        let [first, second, third] = <[Output; 3]>::try_from(outputs()).unwrap();
        assert_eq!(answers, [FailureAnswer::Whole(first.clone()), FailureAnswer::Whole(third.clone())]);
        assert_eq!(held, std::slice::from_ref(&second));

        let mut held = outputs();
        let answers = trouble(false, false).take_answers(&mut held, false);
        assert_eq!(answers, [FailureAnswer::Whole(third)]);
        assert_eq!(held, [first, second], "it may be kept soon");
    }

    #[test]
    fn what_is_not_safe_is_refused_when_it_was_waited_for_long_enough() {
        for (is_long, is_for_good) in [(true, false), (false, true)] {
            let mut held = outputs();
            let answers = trouble(is_long, is_for_good).take_answers(&mut held, false);
            let FailureAnswer::Refused(CLIENT, Frame::Error { id: answered, error }, Method::CreateSession) =
                &answers[0]
            else {
                panic!("{answers:?}")
            };
            assert_eq!(answered.as_ref(), Some(&RequestId::inner(1)));
            assert!(error.message.contains("the disk is full"), "{}", error.message);
            assert_eq!(error.message.contains("takes effect once"), is_long, "{}", error.message);
            assert_eq!(held.len(), 1);
        }
    }
}
