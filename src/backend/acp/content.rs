//! Conversion of content: users' messages for agents, and agents' content for clients.
//!
//! Owns: content blocks in both directions, diffs as text, and transcripts of past turns.
//! Never: opens a file. Attachments that the agent cannot accept are only named.

use std::collections::BTreeMap;

use agent_client_protocol_schema::v1::{
    AudioContent, BlobResourceContents, ContentBlock, ContentChunk, Diff, EmbeddedResource,
    EmbeddedResourceResource, ImageContent, PromptCapabilities, ResourceLink, ToolCallContent,
};
use ahp_types::common::JsonObject;
use ahp_types::state::{
    Message, MessageAttachment, MessageKind, ResponsePart, TextPosition, ToolCallState, ToolResultContent,
    ToolResultEmbeddedResourceContent, ToolResultResourceContent, ToolResultTerminalContent,
    ToolResultTextContent, Turn,
};
use base64::prelude::{Engine, BASE64_STANDARD};
use serde_json::value::RawValue;
use serde_json::Value;

use super::extra_meta;
use super::quirks::AgentQuirks;
use crate::files::uris::path_of;
use crate::host::effects::{Transcript, TranscriptOf};
use crate::line_diff::push_unified;
use crate::state::history::CompletedTurn;
use crate::wire::text::{fence, last_bytes};

/// Maximum size of a transcript, in bytes; older turns are left out.
const TRANSCRIPT_BYTES_MAX: usize = 256 << 10;

/// Maximum size of each side of a diff that is shown as text, in bytes. The thread that computes it
/// serves all clients.
const DIFF_BYTES_MAX: usize = 1 << 20;

/// Content that an agent accepts in a prompt, by its capabilities and quirks.
#[derive(Debug, Clone, Copy)]
pub struct PromptSupport<'a> {
    pub can: &'a PromptCapabilities,
    pub quirks: AgentQuirks,
    /// Set when binary attachments are only named: the agent has refused a message with them.
    pub only_text: bool,
}

/// Returns whether a block is binary or links to binary data, which the agent may read.
pub fn is_binary(block: &ContentBlock) -> bool {
    match block {
        ContentBlock::Image(_) | ContentBlock::Audio(_) => true,
        ContentBlock::ResourceLink(link) => link.mime_type.as_deref().is_some_and(|kind| !is_text(kind)),
        ContentBlock::Resource(resource) => {
            matches!(resource.resource, EmbeddedResourceResource::BlobResourceContents(_))
        }
        _ => false,
    }
}

fn is_text(kind: &str) -> bool {
    let kind = kind.split(';').next().unwrap_or(kind).trim().to_ascii_lowercase();
    let subtype = kind.strip_prefix("application/").unwrap_or_default();
    let is_format = |name: &str| subtype == name || subtype.ends_with(&format!("+{name}"));
    kind.starts_with("text/")
        || ["json", "xml", "yaml", "toml", "sql", "javascript", "typescript", "x-sh", "x-httpd-php"]
            .into_iter()
            .any(is_format)
}

/// Returns the labels of a message's attachments that are sent as binary blocks.
pub fn binaries(message: &Message, takes: PromptSupport<'_>) -> Vec<String> {
    let attachments = message.attachments.iter().flatten();
    let binary = attachments.filter(|it| attached(it, takes).as_ref().is_some_and(is_binary));
    let label = |attachment: &MessageAttachment| match attachment {
        MessageAttachment::EmbeddedResource(resource) => Some(format!("`{}`", resource.label)),
        MessageAttachment::Resource(resource) => Some(format!("`{}`", resource.label)),
        _ => None,
    };
    binary.filter_map(label).collect()
}

/// Converts a user's message to blocks that the agent accepts, with attached texts fenced off.
pub fn prompt(message: &Message, chats: &[Transcript], takes: PromptSupport<'_>) -> Vec<ContentBlock> {
    let mut blocks = Vec::new();
    if !message.text.is_empty() {
        blocks.push(message.text.as_str().into());
    }
    for attachment in message.attachments.iter().flatten() {
        blocks.extend(attached(attachment, takes));
        blocks.extend(selected(attachment).map(ContentBlock::from));
    }
    blocks.extend(chats.iter().map(|chat| attached_words(chat).into()));
    if blocks.is_empty() {
        // Some agents fail on a prompt without content.
        blocks.push(" ".into());
    }
    blocks
}

fn attached_words(Transcript { of, label, text, cut, .. }: &Transcript) -> String {
    let cut = if *cut { "(What was said there before is left out.)\n" } else { "" };
    match of {
        TranscriptOf::Commands => format!("{cut}{text}"),
        TranscriptOf::Chat => {
            format!("This was said in the conversation \"{label}\", which the user has attached:\n\n{cut}{text}\n")
        }
        TranscriptOf::Annotations => {
            format!("This was said to places in files, in the annotations \"{label}\", which the user has attached:\n\n{cut}{text}\n")
        }
    }
}

/// Describes the user's selection in an attachment, for which no content block has a member.
fn selected(attachment: &MessageAttachment) -> Option<String> {
    let (label, selection) = match attachment {
        MessageAttachment::Resource(resource) => (&resource.label, resource.selection.as_ref()?),
        MessageAttachment::EmbeddedResource(resource) => (&resource.label, resource.selection.as_ref()?),
        _ => return None,
    };
    let (start, end) = (&selection.range.start, &selection.range.end);
    let place = |at: &TextPosition| {
        format!("line {}, column {}", at.line.saturating_add(1), at.character.saturating_add(1))
    };
    Some(if start == end {
        format!("(The user is at {} of {label}.)", place(start))
    } else {
        format!("(The user has selected {label} from {} to {}.)", place(start), place(end))
    })
}

/// Fences an attached text off with lines that do not occur in it.
fn set_apart(label: &str, text: &str) -> String {
    let fence = fence(text);
    format!("(The user has attached \"{label}\". This is what is in it:)\n{fence}\n{text}\n{fence}")
}

/// Returns the URI of a linked file, in the form that the agent can read.
fn link_to(uri: &str, quirks: AgentQuirks) -> String {
    let path = path_of(uri).ok().filter(|_| quirks.raw_links);
    let path = path.and_then(|path| path.into_os_string().into_string().ok());
    match path.filter(|path| !path.contains(char::is_control)) {
        Some(path) => format!("file://{path}"),
        None => uri.to_owned(),
    }
}

fn attached(attachment: &MessageAttachment, takes: PromptSupport<'_>) -> Option<ContentBlock> {
    let can = takes.can;
    match attachment {
        MessageAttachment::Simple(simple) => {
            let text = match &simple.model_representation {
                Some(text) => set_apart(&simple.label, text),
                None => format!("(The user has attached \"{}\".)", simple.label),
            };
            Some(text.as_str().into())
        }
        MessageAttachment::Resource(resource) => {
            let uri = link_to(&resource.uri.to_string(), takes.quirks);
            let mut link = ResourceLink::new(resource.label.clone(), uri);
            link.mime_type.clone_from(&resource.content_type);
            link.size = resource.size_hint;
            let link = ContentBlock::ResourceLink(link);
            if !takes.only_text || !is_binary(&link) {
                return Some(link);
            }
            let (label, uri) = (&resource.label, resource.uri.to_string());
            let place = path_of(&uri).map_or(uri, |path| path.display().to_string());
            Some(format!("(The user has attached \"{label}\", which is `{place}`.)").as_str().into())
        }
        MessageAttachment::EmbeddedResource(resource) => {
            let (data, kind) = (&resource.data, &resource.content_type);
            let takes_media = !takes.only_text;
            Some(if kind.starts_with("image/") && can.image && takes_media {
                ContentBlock::Image(ImageContent::new(data.clone(), kind.clone()))
            } else if kind.starts_with("audio/") && can.audio && takes_media {
                ContentBlock::Audio(AudioContent::new(data.clone(), kind.clone()))
            } else {
                embedded(&resource.label, data, kind, takes)
            })
        }
        // Included as transcripts.
        MessageAttachment::Annotations(_) | MessageAttachment::Chat(_) => None,
        MessageAttachment::Unknown(attachment) => {
            tracing::warn!("an attachment of an unknown kind was not given to the agent: {attachment}");
            None
        }
    }
}

fn embedded(label: &str, data: &str, kind: &str, takes: PromptSupport<'_>) -> ContentBlock {
    let embeds = takes.can.embedded_context && takes.quirks.takes_blobs && !takes.only_text;
    // Images and audio have blocks of their own, which the agent must support.
    let is_medium = kind.starts_with("image/") || kind.starts_with("audio/");
    let text = BASE64_STANDARD.decode(data).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    // Text contains no NUL.
    match text.filter(|text| !text.contains('\0')) {
        // An embedded resource needs a URI, and the agent could open none for this text.
        Some(text) => set_apart(label, &text).as_str().into(),
        None if embeds && !is_medium => {
            let name = percent_encoding::utf8_percent_encode(label, percent_encoding::NON_ALPHANUMERIC);
            let uri = format!("attachment:///{name}");
            let mut contents = BlobResourceContents::new(data, uri);
            contents.mime_type = Some(kind.to_owned());
            let contents = EmbeddedResourceResource::BlobResourceContents(contents);
            ContentBlock::Resource(EmbeddedResource::new(contents))
        }
        None => format!("(The user has attached \"{label}\", of type {kind}, which cannot be shown here.)")
            .as_str()
            .into(),
    }
}

pub fn markdown(block: ContentBlock) -> String {
    match block {
        ContentBlock::Text(text) => text.text,
        ContentBlock::Image(image) => format!("![image](data:{};base64,{})", image.mime_type, image.data),
        ContentBlock::Audio(audio) => format!("[audio](data:{};base64,{})", audio.mime_type, audio.data),
        ContentBlock::ResourceLink(link) => format!("[{}]({})", link.title.unwrap_or(link.name), link.uri),
        ContentBlock::Resource(resource) => match resource.resource {
            EmbeddedResourceResource::TextResourceContents(contents) => {
                format!("[{}]({})\n\n{}", contents.uri, contents.uri, contents.text)
            }
            EmbeddedResourceResource::BlobResourceContents(contents) => {
                let kind = contents.mime_type.as_deref().unwrap_or("application/octet-stream");
                format!("[{}](data:{kind};base64,{})", contents.uri, contents.blob)
            }
            _ => String::new(),
        },
        _ => String::new(),
    }
}

#[derive(Debug)]
pub struct ToolOutput {
    /// Content for clients; `None` if they receive it in another way, or if it is unknown.
    pub content: Option<ToolResultContent>,
    /// Members without a counterpart in the host's protocol.
    pub rest: Option<JsonObject>,
    pub diff: Option<Diff>,
}

pub fn produced(raw: &RawValue) -> ToolOutput {
    let members: Value = serde_json::from_str(raw.get()).unwrap_or_default();
    match serde_json::from_str(raw.get()) {
        Ok(ToolCallContent::Content(content)) => {
            let block = rest_of_block(&members["content"], &["uri", "mimeType", "size"], &[]);
            let mut rest = extra_meta::rest(members, &["type", "content"]).unwrap_or_default();
            rest.extend(block.map(|block| ("content".to_owned(), Value::Object(block))));
            let rest = Some(rest).filter(|rest| !rest.is_empty());
            ToolOutput { content: Some(produced_block(content.content)), rest, diff: None }
        }
        Ok(ToolCallContent::Diff(diff)) => ToolOutput {
            content: Some(text(diff_text(&diff))),
            rest: extra_meta::rest(members, &["type", "path", "oldText", "newText"]),
            diff: Some(diff),
        },
        Ok(ToolCallContent::Terminal(_)) => {
            ToolOutput { content: None, rest: extra_meta::rest(members, &["type"]), diff: None }
        }
        _ => ToolOutput { content: None, rest: extra_meta::rest(members, &[]), diff: None },
    }
}

/// Returns the unplaced members of a chunk. Plain text is not parsed again.
pub fn rest_of_chunk(chunk: &ContentChunk, raw: &RawValue) -> Option<JsonObject> {
    let plain = match &chunk.content {
        ContentBlock::Text(text) => text.annotations.is_none() && text.meta.is_none(),
        _ => false,
    };
    if plain && chunk.meta.is_none() {
        return None;
    }
    let members: Value = serde_json::from_str(raw.get()).ok()?;
    let shown = if members["content"]["title"].is_string() { "title" } else { "name" };
    let block = rest_of_block(&members["content"], &["uri", shown], &["uri"]);
    let mut rest = extra_meta::rest(members, &["sessionUpdate", "content", "messageId"]).unwrap_or_default();
    rest.extend(block.map(|block| ("content".to_owned(), Value::Object(block))));
    Some(rest).filter(|rest| !rest.is_empty())
}

/// Returns the unplaced members of a content block. `of_link` and `of_resource` are the members
/// that the caller places itself.
fn rest_of_block(block: &Value, of_link: &[&str], of_resource: &[&str]) -> Option<JsonObject> {
    let kind = block["type"].as_str().unwrap_or_default();
    let placed: &[&str] = match kind {
        "text" => &["type", "text"],
        "image" | "audio" => &["type", "data", "mimeType"],
        "resource" => &["type", "resource"],
        "resource_link" => &[&["type"], of_link].concat(),
        _ => &[],
    };
    let mut rest = extra_meta::rest(block.clone(), placed).unwrap_or_default();
    if kind == "resource" {
        let contents = &block["resource"];
        let placed: &[&str] = if contents["text"].is_string() { &["text"] } else { &["blob", "mimeType"] };
        let contents = extra_meta::rest(contents.clone(), &[placed, of_resource].concat());
        rest.extend(contents.map(|contents| (kind.to_owned(), Value::Object(contents))));
    }
    Some(rest).filter(|rest| !rest.is_empty())
}

fn produced_block(block: ContentBlock) -> ToolResultContent {
    let embedded = |data, content_type| {
        ToolResultContent::EmbeddedResource(ToolResultEmbeddedResourceContent { data, content_type })
    };
    match block {
        ContentBlock::Image(image) => embedded(image.data, image.mime_type),
        ContentBlock::Audio(audio) => embedded(audio.data, audio.mime_type),
        ContentBlock::ResourceLink(link) => ToolResultContent::Resource(ToolResultResourceContent {
            uri: link.uri,
            size_hint: link.size,
            content_type: link.mime_type,
            nonce: None,
        }),
        ContentBlock::Resource(resource) => match resource.resource {
            EmbeddedResourceResource::TextResourceContents(contents) => text(contents.text),
            EmbeddedResourceResource::BlobResourceContents(contents) => {
                let kind = contents.mime_type.unwrap_or_else(|| "application/octet-stream".to_owned());
                embedded(contents.blob, kind)
            }
            _ => text(String::new()),
        },
        block => text(markdown(block)),
    }
}

pub fn terminal(name: &str, title: &str) -> ToolResultContent {
    ToolResultContent::Terminal(ToolResultTerminalContent {
        resource: name.to_owned(),
        title: title.to_owned(),
        is_pty: Some(false),
        result: None,
    })
}

pub fn text(text: String) -> ToolResultContent {
    ToolResultContent::Text(ToolResultTextContent { text })
}

/// Formats a diff as `diff -u` does.
fn diff_text(diff: &Diff) -> String {
    let (old, new) = (diff.old_text.as_deref().unwrap_or_default(), diff.new_text.as_str());
    let path = diff.path.display();
    let from = if diff.old_text.is_some() { path.to_string() } else { "/dev/null".to_owned() };
    let mut text = format!("--- {from}\n+++ {path}\n");
    if old.len().max(new.len()) > DIFF_BYTES_MAX {
        return format!("{text}({} bytes, now {} bytes: too long to compare)\n", old.len(), new.len());
    }
    let mut changes = Vec::new();
    push_unified(&mut changes, old.as_bytes(), new.as_bytes());
    text.push_str(&String::from_utf8_lossy(&changes));
    text
}

/// Returns a transcript of the turns and their attachments, for an agent without memory of them.
/// The attachments are by the positions of their turns.
pub fn transcript(history: &[CompletedTurn], chats: &BTreeMap<usize, Vec<Transcript>>) -> String {
    let mut texts = Vec::new();
    let mut bytes = 0;
    for (position, turn) in history.iter().enumerate().rev() {
        let Some(turn) = turn.read() else { continue };
        let text = text_of_turn(&turn, chats.get(&position).map(Vec::as_slice).unwrap_or_default());
        bytes += text.len();
        if bytes > TRANSCRIPT_BYTES_MAX {
            if texts.is_empty() {
                texts.push(last_bytes(&text, TRANSCRIPT_BYTES_MAX).to_owned());
            }
            texts.push("(What was said before that is left out.)\n".to_owned());
            break;
        }
        texts.push(text);
    }
    texts.reverse();
    format!(
        "This conversation began before you joined it. This is what was said so far; go on from there.\n\n{}\n\
         That was what was said so far. The user's new message follows.",
        texts.concat()
    )
}

fn text_of_turn(turn: &Turn, chats: &[Transcript]) -> String {
    let attached: String = chats.iter().map(|chat| attached_words(chat) + "\n").collect();
    let mut text = match turn.message.origin.kind {
        MessageKind::SystemNotification => "You, by yourself:\n".to_owned(),
        _ => format!("The user:\n{}\n\n{attached}You:\n", turn.message.text),
    };
    text.push_str(&answer_text(&turn.response_parts));
    text.push('\n');
    text
}

/// Returns an answer as text for the agent. Calls that are not over are omitted.
pub fn answer_text(parts: &[ResponsePart]) -> String {
    let mut text = String::new();
    for part in parts {
        match part {
            ResponsePart::Markdown(part) => text.extend([part.content.as_str(), "\n"]),
            ResponsePart::ToolCall(part) => {
                let (used, tool) = match &part.tool_call {
                    ToolCallState::Completed(call) if call.success => ("used", &call.display_name),
                    ToolCallState::Completed(call) => ("failed with", &call.display_name),
                    ToolCallState::Cancelled(call) => ("did not get to the end with", &call.display_name),
                    _ => continue,
                };
                text.push_str(&format!("(You {used} the tool {tool}.)\n"));
            }
            _ => {}
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linked_file_is_named_as_the_agent_reads_it() {
        let raw = AgentQuirks { raw_links: true, ..AgentQuirks::NONE };
        let uri = "file:///a%20b/%C3%A4%2541.txt";
        assert_eq!(link_to(uri, AgentQuirks::NONE), uri);
        assert_eq!(link_to(uri, raw), "file:///a b/\u{e4}%41.txt");
        for other in ["https://a/b%20c", "file:///a%0Ab", "file:///%FF"] {
            assert_eq!(link_to(other, raw), other);
        }
    }

    #[test]
    fn what_is_attached_is_no_word_of_the_user_and_nothing_is_sent_that_cannot_be_taken() {
        assert!(set_apart("x", "a ```` b").contains("\n`````\na ```` b\n`````"));
        let can = PromptCapabilities::new().embedded_context(true);
        let block = |data: &[u8], kind: &str, quirks| {
            let block = embedded(
                "x",
                &BASE64_STANDARD.encode(data),
                kind,
                PromptSupport { can: &can, quirks, only_text: false },
            );
            serde_json::to_value(block).unwrap()
        };
        assert!(block(b"\xff", "application/pdf", AgentQuirks::NONE)["resource"]["blob"].is_string());
        let none = AgentQuirks { takes_blobs: false, ..AgentQuirks::NONE };
        let text = "(The user has attached \"x\", of type application/pdf, which cannot be shown here.)";
        assert_eq!(block(b"\xff", "application/pdf", none)["text"], text);
        assert_eq!(block(b"\xff", "image/png", AgentQuirks::NONE)["type"], "text");
        for quirks in [AgentQuirks::NONE, none] {
            let text = block(b"some text", "text/plain", quirks)["text"].as_str().unwrap().to_owned();
            assert!(text.contains("attached \"x\"") && text.contains("\nsome text\n"), "{text}");
        }
    }

    #[test]
    fn pictures_and_sounds_are_for_agents_that_take_them_and_a_selection_is_for_all() {
        let given = |can: PromptCapabilities, attachment: Value| {
            let message =
                serde_json::json!({ "text": "", "origin": { "kind": "user" }, "attachments": [attachment] });
            let message: Message = serde_json::from_value(message).unwrap();
            let takes = PromptSupport { can: &can, quirks: AgentQuirks::NONE, only_text: false };
            let blocks = prompt(&message, &[], takes);
            let named = prompt(&message, &[], PromptSupport { only_text: true, ..takes });
            assert!(!named.iter().any(is_binary), "{named:?}");
            serde_json::to_value(blocks).unwrap()
        };
        let medium = |kind: &str| {
            let data = BASE64_STANDARD.encode(b"\xff");
            serde_json::json!({ "type": "embeddedResource", "label": "x", "data": data, "contentType": kind })
        };
        let none = PromptCapabilities::new;
        for (kind, name, can) in
            [("image/png", "image", none().image(true)), ("audio/wav", "audio", none().audio(true))]
        {
            let taken = given(can, medium(kind));
            assert_eq!((&taken[0]["type"], &taken[0]["mimeType"]), (&name.into(), &kind.into()));
            let text = format!("(The user has attached \"x\", of type {kind}, which cannot be shown here.)");
            let named = serde_json::json!([{ "type": "text", "text": text }]);
            assert_eq!(given(none(), medium(kind)), named);
            assert_eq!(given(none().embedded_context(true), medium(kind)), named);
        }
        let range = serde_json::json!({
            "start": { "line": 1, "character": 0 }, "end": { "line": 2, "character": 4 } });
        let linked = |kind: &str| {
            let link = serde_json::json!({
                "type": "resource", "label": "a", "uri": "file:///b/a", "contentType": kind });
            given(none(), link)[0]["type"].clone()
        };
        for kind in ["application/pdf", "image/png", "text/plain; charset=utf-8", "application/vnd.api+json"]
        {
            assert_eq!(linked(kind), "resource_link", "{kind}");
        }
        let file = serde_json::json!({
            "type": "resource", "label": "a.txt", "uri": "file:///a.txt", "selection": { "range": range } });
        let blocks = given(none(), file);
        assert_eq!(blocks[0]["type"], "resource_link");
        let text = "(The user has selected a.txt from line 2, column 1 to line 3, column 5.)";
        assert_eq!(blocks[1]["text"], text);
    }

    fn completed(id: &str, answer: &str) -> CompletedTurn {
        let call = |status: &str, name: &str, more: Value| {
            let mut call = serde_json::json!({
                "status": status, "toolCallId": name, "toolName": name, "displayName": name,
                "invocationMessage": name });
            call.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::json!({ "kind": "toolCall", "toolCall": call })
        };
        let ready = |success: bool| serde_json::json!({ "confirmed": "not-needed", "success": success, "pastTenseMessage": "x" });
        let turn = serde_json::json!({
            "id": id, "state": "complete", "message": { "text": "do it", "origin": { "kind": "user" } },
            "responseParts": [
                { "kind": "markdown", "id": "m", "content": answer },
                call("completed", "read", ready(true)),
                call("completed", "write", ready(false)),
                call("cancelled", "delete", serde_json::json!({ "reason": "denied" })),
            ] });
        CompletedTurn::of(&serde_json::from_value(turn).unwrap())
    }

    #[test]
    fn transcript_names_the_outcome_of_each_call() {
        let text = transcript(&[completed("t", "Yes.")], &BTreeMap::new());
        assert!(
            text.contains(
                "The user:\ndo it\n\nYou:\nYes.\n(You used the tool read.)\n\
                 (You failed with the tool write.)\n(You did not get to the end with the tool delete.)\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn transcript_has_the_end_of_a_newest_turn_that_is_too_long() {
        let long = format!("{}the end", "x".repeat(TRANSCRIPT_BYTES_MAX));
        let text = transcript(&[completed("t1", "first"), completed("t2", &long)], &BTreeMap::new());
        assert!(text.contains("left out.)\nxx") && text.contains("the end\n") && !text.contains("first"));
        assert!(text.len() < TRANSCRIPT_BYTES_MAX + 300);
    }

    #[test]
    fn a_change_is_shown_with_what_is_around_it() {
        let old = "a\nb\nc\nd\nold\ne\nf\ng\nh\n";
        let new = old.replace("old", "new\nnewer");
        let diff = diff_text(&Diff::new("/x/y", new).old_text(old.to_owned()));
        assert_eq!(diff, "--- /x/y\n+++ /x/y\n@@ -2,7 +2,8 @@\n b\n c\n d\n-old\n+new\n+newer\n e\n f\n g\n");
        let diff = diff_text(&Diff::new("/x/y", "a\nb"));
        assert_eq!(diff, "--- /dev/null\n+++ /x/y\n@@ -0,0 +1,2 @@\n+a\n+b\n\\ No newline at end of file\n");
        let diff = diff_text(&Diff::new("/x", "same\n").old_text("same\n".to_owned()));
        assert_eq!(diff, "--- /x\n+++ /x\n");
        let numbered =
            |range: std::ops::RangeInclusive<u32>| range.map(|n| format!("{n}\n")).collect::<String>();
        let new = numbered(1..=20).replace("\n3\n", "\nthree\n").replace("\n18\n", "\n");
        let diff = diff_text(&Diff::new("/x", new).old_text(numbered(1..=20)));
        assert_eq!(
            diff,
            "--- /x\n+++ /x\n@@ -1,6 +1,6 @@\n 1\n 2\n-3\n+three\n 4\n 5\n 6\n\
             @@ -15,6 +15,5 @@\n 15\n 16\n 17\n-18\n 19\n 20\n",
            "changes that are far from each other have hunks of their own"
        );
        let diff = diff_text(&Diff::new("/x", "a\na\n").old_text("a\n".to_owned()));
        assert_eq!(diff, "--- /x\n+++ /x\n@@ -1,1 +1,2 @@\n a\n+a\n");
        let diff = diff_text(&Diff::new("/x", "a\n".repeat(DIFF_BYTES_MAX)).old_text("a\n".to_owned()));
        assert_eq!(diff, "--- /x\n+++ /x\n(2 bytes, now 2097152 bytes: too long to compare)\n");
    }
}
