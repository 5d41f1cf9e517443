//! Answers to the questions of an input request.
//!
//! Owns: whether an answer is valid for its question, the value of a text answer, and which answers
//! are missing.
//! Never: changes a request, or handles a refusal.

use std::collections::HashMap;

use ahp_types::actions::ChatInputCompletedAction;
use ahp_types::state::{
    ChatInputAnswer, ChatInputAnswerValue, ChatInputNumberAnswerValue, ChatInputOption, ChatInputQuestion,
    ChatInputRequest, ChatInputResponseKind, ChatInputSelectedAnswerValue, ChatInputSelectedManyAnswerValue,
};

use crate::host::refusal::Refusal;

/// Returns the id of a question, and whether an answer to it is required; `None` for a question of
/// an unknown kind without an id.
fn id_and_required(question: &ChatInputQuestion) -> Option<(&str, bool)> {
    use ChatInputQuestion as Question;
    let (id, required) = match question {
        Question::Text(question) => (&question.id, question.required),
        Question::Number(question) | Question::Integer(question) => (&question.id, question.required),
        Question::Boolean(question) => (&question.id, question.required),
        Question::SingleSelect(question) => (&question.id, question.required),
        Question::MultiSelect(question) => (&question.id, question.required),
        Question::Unknown(question) => return Some((question.get("id")?.as_str()?, false)),
    };
    Some((id, required == Some(true)))
}

pub(super) fn question_of<'a>(
    request: &'a ChatInputRequest,
    id: &str,
) -> Result<&'a ChatInputQuestion, Refusal> {
    let mut questions = request.questions.iter().flatten();
    let question = questions.find(|question| id_and_required(question).is_some_and(|(its, _)| its == id));
    question.ok_or_else(|| Refusal::NoSuchQuestion(id.to_owned()))
}

/// Checks that an answer has a value of its question's kind. A text is replaced by the value that
/// it represents: real clients answer every typed question with a text.
pub(super) fn check_answer(
    question: &ChatInputQuestion,
    id: &str,
    answer: Option<&mut ChatInputAnswer>,
) -> Result<(), Refusal> {
    let value = match answer {
        Some(ChatInputAnswer::Draft(answer) | ChatInputAnswer::Submitted(answer)) => &mut answer.value,
        Some(ChatInputAnswer::Skipped(_)) | None => return Ok(()),
    };
    use {ChatInputAnswerValue as Value, ChatInputQuestion as Question};
    if let Value::Text(text) = value {
        if let Some(parsed) = value_of_text(question, &text.value) {
            *value = parsed;
        }
    }
    let fits = match (question, &*value) {
        (_, Value::Unknown(_)) => false,
        (Question::Text(_), Value::Text(_)) | (Question::Boolean(_), Value::Boolean(_)) => true,
        (Question::Number(_), Value::Number(_)) => true,
        (Question::Integer(_), Value::Number(answer)) => answer.value.fract() == 0.0,
        (Question::SingleSelect(question), Value::Selected(answer)) => {
            question.allow_freeform_input != Some(false)
                || answer.value.is_empty()
                || is_offered(&question.options, &answer.value)
        }
        (Question::MultiSelect(question), Value::SelectedMany(answer)) => {
            question.allow_freeform_input != Some(false)
                || answer.value.iter().all(|value| is_offered(&question.options, value))
        }
        (Question::Unknown(_), _) => true,
        _ => false,
    };
    if fits {
        Ok(())
    } else {
        Err(Refusal::AnswerOfOtherKind(id.to_owned()))
    }
}

fn is_offered(options: &[ChatInputOption], value: &str) -> bool {
    options.iter().any(|option| option.id == value)
}

/// Returns the value of a text answer: a number, the chosen option, or else the text itself as a
/// free choice.
fn value_of_text(question: &ChatInputQuestion, text: &str) -> Option<ChatInputAnswerValue> {
    use {ChatInputAnswerValue as Value, ChatInputQuestion as Question};
    // Chosen option, or free text in place of one.
    let choice = |options: &[ChatInputOption], freely: Option<bool>| match options
        .iter()
        .find(|option| option.id == text || option.label == text)
    {
        Some(option) => Some((Some(option.id.clone()), None)),
        None if freely == Some(false) => None,
        None => Some((None, Some(vec![text.to_owned()]))),
    };
    match question {
        Question::Number(_) | Question::Integer(_) => {
            let value = text.trim().parse().ok().filter(|value: &f64| value.is_finite())?;
            Some(Value::Number(ChatInputNumberAnswerValue { value }))
        }
        Question::SingleSelect(question) => {
            let (option, freeform_values) = choice(&question.options, question.allow_freeform_input)?;
            let value = option.unwrap_or_default();
            Some(Value::Selected(ChatInputSelectedAnswerValue { value, freeform_values }))
        }
        Question::MultiSelect(question) => {
            let (option, freeform_values) = choice(&question.options, question.allow_freeform_input)?;
            let value = option.into_iter().collect();
            Some(Value::SelectedMany(ChatInputSelectedManyAnswerValue { value, freeform_values }))
        }
        _ => None,
    }
}

/// Checks the answers that complete a request, as [`check_answer`] does. Only submitted answers to
/// an accepted request must be valid; others that are not are removed.
pub(crate) fn check_answers(
    request: &ChatInputRequest,
    last: &mut ChatInputCompletedAction,
) -> Result<(), Refusal> {
    let accepts = last.response == ChatInputResponseKind::Accept;
    let mut answers: Vec<_> = last.answers.iter_mut().flatten().collect();
    answers.sort_unstable_by_key(|(id, _)| *id);
    let mut unfit = Vec::new();
    for (id, answer) in answers {
        let is_needed = accepts && matches!(answer, ChatInputAnswer::Submitted(_));
        match question_of(request, id).and_then(|question| check_answer(question, id, Some(answer))) {
            Err(why) if is_needed => return Err(why),
            Err(_) => unfit.push(id.clone()),
            Ok(()) => {}
        }
    }
    if accepts {
        check_required(request, last.answers.as_ref())?;
    }
    if let Some(answers) = &mut last.answers {
        // They were found in order.
        answers.retain(|id, _| unfit.binary_search(id).is_err());
    }
    Ok(())
}

/// Checks that every required question has a submitted answer, in `now` or from before.
fn check_required(
    request: &ChatInputRequest,
    now: Option<&HashMap<String, ChatInputAnswer>>,
) -> Result<(), Refusal> {
    let submitted = |id: &str| {
        let answer = now.and_then(|answers| answers.get(id));
        let answer = answer.or_else(|| request.answers.as_ref().and_then(|answers| answers.get(id)));
        matches!(answer, Some(ChatInputAnswer::Submitted(_)))
    };
    let mut questions = request.questions.iter().flatten().filter_map(id_and_required);
    match questions.find(|(id, is_required)| *is_required && !submitted(id)) {
        Some((id, _)) => Err(Refusal::AnswerMissing(id.to_owned())),
        None => Ok(()),
    }
}
