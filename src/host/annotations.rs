//! Annotations: comments of people on places in the files of a session.
//!
//! Owns: the actions that clients may dispatch on annotations and their limits, when the channel of
//! a session's annotations is in memory, the annotation counts of sessions and summaries, and the
//! text that agents get for annotations attached to a message.
//! Never: follows changes of files, chats or turns: an annotation stays with its session even if
//! its chat moves or its turn is removed.
//!
//! The official reducers define the meaning of every action. No action carries the counts in a
//! session's state; snapshots and summaries have them.

use std::collections::BTreeSet;

use ahp::reducers::apply_action_to_annotations;
use ahp_types::actions::{ActionOrigin, StateAction};
use ahp_types::state::{Annotation, AnnotationEntry, AnnotationOrigin, AnnotationsState, TextRange};

use super::actions::Verdict;
use super::catalogue::ahead;
use super::channels::{annotation_named_in, Annotations};
use super::effects::{AnnotationsKey, ChatKey};
use super::ledger::Ledger;
use super::limits::{check_id, URI_BYTES_MAX};
use super::model::{Channel, Session, SessionKey};
use super::refusal::Refusal;
use super::Step;
use crate::wire::annotations::annotations_uri;
use crate::wire::rpc::json_bytes;
use crate::wire::text;

/// Maximum number of annotations of a session.
const ANNOTATIONS_MAX: usize = 1000;

/// Maximum number of entries of an annotation.
const ENTRIES_MAX: usize = 100;

/// Maximum length of an entry's text, in bytes.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// Maximum length of an id, in bytes.
const ID_BYTES_MAX: usize = 256;

/// Maximum size of a session's annotations as JSON text, in bytes.
const BYTES_MAX: usize = 4 << 20;

/// Applies an action of a client to annotations, or refuses it.
pub(super) fn annotate(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: AnnotationsKey,
    action: StateAction,
    origin: ActionOrigin,
) -> Result<Verdict, Refusal> {
    let Some(annotations) = ledger.channels.annotations.known(key) else {
        return Ok(Verdict::Unchanged);
    };
    let id = annotation_named_in(&action).unwrap_or_default();
    let known = annotations.get(id);
    match (&action, known) {
        (StateAction::AnnotationsSet(set), _) => {
            let annotation = &set.annotation;
            check_id("annotation.id", &annotation.id, ID_BYTES_MAX)?;
            check_entries(&annotation.entries)?;
            check_id("resource", &annotation.resource, URI_BYTES_MAX)?;
            annotation.range.as_ref().map_or(Ok(()), check_range)?;
            check_origin(ledger, key.into(), &annotation.origin, known)?;
            if known.is_none() && annotations.list().len() >= ANNOTATIONS_MAX {
                return Err(Refusal::TooManyAnnotations(ANNOTATIONS_MAX));
            }
        }
        (_, None) => return Err(Refusal::NoSuchAnnotation(id.to_owned())),
        (StateAction::AnnotationsUpdated(update), Some(known)) => {
            let members = (&update.origin, &update.resource, &update.range, &update.resolved);
            if matches!(members, (None, None, None, None)) {
                return Err(Refusal::NothingUpdated);
            }
            let resource = update.resource.as_deref();
            resource.map_or(Ok(()), |uri| check_id("resource", uri, URI_BYTES_MAX))?;
            update.range.as_ref().map_or(Ok(()), check_range)?;
            if let Some(origin) = &update.origin {
                check_origin(ledger, key.into(), origin, Some(known))?;
            }
        }
        (StateAction::AnnotationsEntrySet(set), Some(known)) => {
            check_entry(&set.entry)?;
            let is_new = known.entries.iter().all(|entry| entry.id != set.entry.id);
            if is_new && known.entries.len() >= ENTRIES_MAX {
                return Err(Refusal::TooManyEntries(ENTRIES_MAX));
            }
        }
        (StateAction::AnnotationsEntryRemoved(removed), Some(known)) => {
            if known.entries.iter().all(|entry| entry.id != removed.entry_id) {
                return Err(Refusal::NoSuchEntry(removed.entry_id.clone()));
            }
            if known.entries.len() == 1 {
                return Err(Refusal::LastEntry(removed.entry_id.clone()));
            }
        }
        _ => {}
    }
    // The outcome for this annotation; the others are unaffected.
    let before: Vec<Annotation> = known.cloned().into_iter().collect();
    let mut after = AnnotationsState { annotations: before.clone() };
    apply_action_to_annotations(&mut after, &action);
    if after.annotations == before {
        return Ok(Verdict::Unchanged);
    }
    let bytes = |annotations: &[Annotation]| annotations.iter().map(json_bytes).sum::<usize>();
    let (was, is) = (bytes(&before), bytes(&after.annotations));
    if is > was && annotations.bytes().saturating_sub(was) + is > BYTES_MAX {
        return Err(Refusal::AnnotationsTooLarge(BYTES_MAX));
    }
    ahead::begin_session(ledger, step, key.into());
    ledger.sequence(step, key, action, Some(origin));
    Ok(Verdict::Done)
}

/// Adds the annotations of a session that comes into memory. The session gets none if a channel of
/// an older store already has their URI.
pub(super) fn add_annotations(ledger: &mut Ledger, key: SessionKey, annotations: Vec<Annotation>) {
    let Some(session) = ledger.channels.sessions.known_mut(key) else { return };
    let uri = annotations_uri(&session.channel.uri);
    if ledger.channels.by_uri.contains_key(&uri) {
        tracing::warn!(uri, "a session has no annotations, because a channel of another kind has their URI");
        session.state.annotations = None;
        return;
    }
    let key = AnnotationsKey::from(key);
    let channel = Channel::new(uri.clone(), session.channel.born_at);
    ledger.channels.by_uri.insert(uri, key.into());
    ledger.channels.annotations.insert(key, Annotations::new(channel, annotations));
}

pub(super) fn remove_annotations_of(ledger: &mut Ledger, session: SessionKey) {
    let key = AnnotationsKey::from(session);
    ledger.unlink(key.into());
    ledger.channels.annotations.remove(&key);
}

pub(super) fn annotations_of(ledger: &Ledger, session: SessionKey) -> &[Annotation] {
    ledger.channels.annotations.get(&session.into()).map_or(&[], Annotations::list)
}

/// Estimates the memory of a session's annotations, in bytes.
pub(super) fn annotations_bytes(ledger: &Ledger, session: &Session) -> usize {
    its_annotations(ledger, session).map_or(0, Annotations::bytes)
}

/// Returns whether a session's annotations may be evicted: they have no subscribers.
pub(super) fn has_idle_annotations(ledger: &Ledger, session: &Session) -> bool {
    its_annotations(ledger, session).is_none_or(|it| it.channel.subscribers.is_empty())
}

fn its_annotations<'a>(ledger: &'a Ledger, session: &Session) -> Option<&'a Annotations> {
    let key = ledger.channels.by_uri.get(&session.channel.uri)?.session()?;
    ledger.channels.annotations.get(&key.into())
}

/// Checks that an annotation can originate in this chat and turn. An existing annotation may be set
/// again although its chat or turn has been removed.
fn check_origin(
    ledger: &Ledger,
    key: SessionKey,
    origin: &AnnotationOrigin,
    known: Option<&Annotation>,
) -> Result<(), Refusal> {
    if known.is_some_and(|known| known.origin == *origin) {
        return Ok(());
    }
    if ledger.find_session(&origin.session) != Some(key) {
        return Err(Refusal::OriginOfOtherSession(origin.session.clone()));
    }
    let of_session = |chat: &ChatKey| ledger.channels.chats.known(*chat).is_some_and(|it| it.session == key);
    let chats = match &origin.chat {
        None => ledger.channels.chats_in(key),
        Some(uri) => {
            let chat = ledger.find_chat(uri).filter(of_session);
            vec![chat.ok_or_else(|| Refusal::NoChatOfSession(uri.clone()))?]
        }
    };
    match &origin.turn_id {
        None => Ok(()),
        Some(id) if chats.iter().any(|chat| has_had_turn(ledger, *chat, id)) => Ok(()),
        Some(id) => Err(Refusal::NoSuchTurn(id.clone())),
    }
}

fn has_had_turn(ledger: &Ledger, chat: ChatKey, id: &str) -> bool {
    ledger.channels.chats.known(chat).is_some_and(|chat| chat.has_had_turn(id))
}

/// Returns all annotations of a channel, or those of `ids`, as text; `None` without a channel.
pub(super) fn annotations_in_words(ledger: &Ledger, uri: &str, ids: Option<&[String]>) -> Option<String> {
    let annotations = ledger.channels.annotations.known(ledger.find(uri)?.annotations()?)?;
    // A client may name very many.
    let ids: Option<BTreeSet<&String>> = ids.map(|ids| ids.iter().collect());
    let is_chosen = |it: &&Annotation| ids.as_ref().is_none_or(|ids| ids.contains(&it.id));
    let chosen: Vec<&Annotation> = annotations.list().iter().filter(is_chosen).collect();
    let gone = ids.as_ref().map_or(0, |ids| ids.len().saturating_sub(chosen.len()));
    let mut words: String = chosen.into_iter().map(describe).collect();
    if gone > 0 {
        words += &format!("({gone} of those that were attached: not there any more)\n");
    } else if words.is_empty() {
        words.push_str("(none)\n");
    }
    Some(words)
}

fn check_range(range: &TextRange) -> Result<(), Refusal> {
    let [start, end] = [&range.start, &range.end].map(|position| (position.line, position.character));
    let is_one = start.0 >= 0 && start.1 >= 0 && end.1 >= 0 && start <= end;
    is_one.then_some(()).ok_or(Refusal::NoSuchRange)
}

fn check_entries(entries: &[AnnotationEntry]) -> Result<(), Refusal> {
    if entries.is_empty() {
        return Err(Refusal::WithoutEntries);
    }
    if entries.len() > ENTRIES_MAX {
        return Err(Refusal::TooManyEntries(ENTRIES_MAX));
    }
    entries.iter().try_for_each(check_entry)?;
    let mut ids = BTreeSet::new();
    match entries.iter().find(|entry| !ids.insert(&entry.id)) {
        Some(entry) => Err(Refusal::EntryTwice(entry.id.clone())),
        None => Ok(()),
    }
}

fn check_entry(entry: &AnnotationEntry) -> Result<(), Refusal> {
    check_id("entry.id", &entry.id, ID_BYTES_MAX)?;
    if text::plain(&entry.text).len() > TEXT_BYTES_MAX {
        return Err(Refusal::EntryTooLarge { id: entry.id.clone(), max: TEXT_BYTES_MAX });
    }
    Ok(())
}

fn describe(annotation: &Annotation) -> String {
    let mut words = annotation.resource.clone();
    if let Some(range) = &annotation.range {
        words += &format!(", {}", lines_of(range));
    }
    words.push_str(if annotation.resolved { " (resolved):\n" } else { ":\n" });
    for entry in &annotation.entries {
        words += &format!("- {}\n", text::plain(&entry.text).trim_end().replace('\n', "\n  "));
    }
    words
}

/// Formats a range as line numbers that start at 1.
fn lines_of(range: &TextRange) -> String {
    let (first, last) = (range.start.line.saturating_add(1), range.end.line.saturating_add(1));
    if last <= first {
        format!("line {first}")
    } else {
        format!("lines {first} to {last}")
    }
}

#[cfg(test)]
mod tests {
    use ahp_types::actions::{AnnotationsEntryRemovedAction, AnnotationsRemovedAction, AnnotationsSetAction};

    use super::*;
    use crate::host::effects::{Failing, Output};
    use crate::host::testing::{origin, outputs_of, with_session, SESSION};

    const URI: &str = "ahp-session:/s";

    fn annotated() -> Ledger {
        let mut ledger = with_session();
        add_annotations(&mut ledger, SESSION, Vec::new());
        ledger
    }

    fn set(origin: &str, entries: usize) -> StateAction {
        let entry = |at| AnnotationEntry { id: format!("e{at}"), text: "text".into(), meta: None };
        let annotation = Annotation {
            id: "a".to_owned(),
            origin: AnnotationOrigin { session: origin.to_owned(), chat: None, turn_id: None },
            resource: "file:///f".to_owned(),
            range: None,
            resolved: false,
            entries: (0..entries).map(entry).collect(),
            meta: None,
        };
        StateAction::AnnotationsSet(AnnotationsSetAction { annotation })
    }

    fn say(ledger: &mut Ledger, action: StateAction) -> (Result<Verdict, Refusal>, Vec<Output>) {
        let mut verdict = Ok(Verdict::Unchanged);
        let outputs = outputs_of(|step| verdict = annotate(ledger, step, SESSION.into(), action, origin()));
        (verdict, outputs)
    }

    #[test]
    fn annotation_is_sequenced_once_and_leaves_with_its_session() {
        let mut ledger = annotated();
        let (verdict, outputs) = say(&mut ledger, set(URI, 1));
        assert!(matches!((verdict, outputs.len()), (Ok(Verdict::Done), 1)), "{outputs:?}");
        let (verdict, outputs) = say(&mut ledger, set(URI, 1));
        assert!(matches!((verdict, outputs.len()), (Ok(Verdict::Unchanged), 0)), "{outputs:?}");
        assert_eq!((annotations_of(&ledger, SESSION).len(), ledger.head()), (1, 1));
        ledger.set_failing(Some(Failing { reason: "the disk is full".to_owned(), safe: 0 }));
        assert!(ledger.check_committed(SESSION.into()).is_err(), "the session's state has their number");
        ledger.set_failing(None);
        let words = annotations_in_words(&ledger, &annotations_uri(URI), None).unwrap();
        assert_eq!(words, "file:///f:\n- text\n");
        remove_annotations_of(&mut ledger, SESSION);
        assert_eq!(annotations_of(&ledger, SESSION), []);
        assert_eq!(ledger.find(&annotations_uri(URI)), None);
    }

    #[test]
    fn id_that_an_attachment_repeats_is_looked_for_once() {
        let mut ledger = annotated();
        say(&mut ledger, set(URI, 1)).0.unwrap();
        let ids = ["gone", "a", "a", "gone", "other"].map(str::to_owned);
        let words = annotations_in_words(&ledger, &annotations_uri(URI), Some(&ids)).unwrap();
        assert_eq!(words, "file:///f:\n- text\n(2 of those that were attached: not there any more)\n");
    }

    #[test]
    fn refused_annotations_change_nothing() {
        let mut ledger = annotated();
        say(&mut ledger, set(URI, 1)).0.unwrap();
        let remove = |id: &str| {
            StateAction::AnnotationsRemoved(AnnotationsRemovedAction { annotation_id: id.to_owned() })
        };
        let (annotation_id, entry_id) = ("a".to_owned(), "e0".to_owned());
        let last = AnnotationsEntryRemovedAction { annotation_id, entry_id };
        for action in [
            set("ahp-session:/other", 2),
            set(URI, 0),
            set(URI, ENTRIES_MAX + 1),
            remove("absent"),
            StateAction::AnnotationsEntryRemoved(last),
        ] {
            let (verdict, outputs) = say(&mut ledger, action);
            assert!(verdict.is_err() && outputs.is_empty(), "{outputs:?}");
        }
        assert_eq!((annotations_of(&ledger, SESSION)[0].entries.len(), ledger.head()), (1, 1));
    }
}
