//! WebSocket frames that go out between messages: pongs and the closing frame.
//!
//! Owns: the bound on pending frames, for clients that send many pings: the newest pong and one
//! closing frame.
//! Never: writes to a stream.

use std::io::Cursor;
use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;
use tokio::sync::Notify;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Control, OpCode};
use tokio_tungstenite::tungstenite::protocol::frame::{CloseFrame, Frame, FrameHeader};

use crate::sync::lock;

/// Maximum length of the reason in a closing frame, in bytes (RFC 6455, 5.5: 125 with the code).
const REASON_BYTES_MAX: usize = 123;

#[derive(Debug, PartialEq, Eq)]
pub enum ControlFrame {
    Bytes(Bytes),
    /// End of the output: no frame may follow.
    End,
}

#[derive(Debug, Default)]
pub struct ControlFrames {
    waiting: Mutex<UnsentFrames>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct UnsentFrames {
    pong: Option<Bytes>,
    close: Option<Bytes>,
    end: End,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum End {
    #[default]
    NotYet,
    Asked,
    Taken,
}

impl ControlFrames {
    /// Queues frames encoded by the library. A new pong replaces a pending one (RFC 6455, 5.5.3).
    pub fn put(&self, mut frames: &[u8]) {
        let mut waiting = self.waiting();
        while let Ok(Some((header, payload))) = FrameHeader::parse(&mut Cursor::new(frames)) {
            let payload = usize::try_from(payload).unwrap_or(usize::MAX);
            let length = header.len(payload as u64).saturating_add(payload);
            let Some((frame, rest)) = frames.split_at_checked(length) else { break };
            match header.opcode {
                OpCode::Control(Control::Pong) => waiting.pong = Some(Bytes::copy_from_slice(frame)),
                OpCode::Control(Control::Close) => waiting.close = Some(Bytes::copy_from_slice(frame)),
                // The library generates no other frames by itself.
                _ => {}
            }
            frames = rest;
        }
        drop(waiting);
        self.changed.notify_one();
    }

    /// Queues a closing frame with this code and reason, unless one is pending.
    pub fn close(&self, code: CloseCode, reason: &str) {
        let mut end = reason.len().min(REASON_BYTES_MAX);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        let reason = &reason[..end];
        let mut frame = Vec::new();
        let close = Frame::close(Some(CloseFrame { code, reason: reason.into() }));
        if let Err(error) = close.format(&mut frame) {
            tracing::debug!(%error, "a closing frame cannot be made");
        }
        self.waiting().close.get_or_insert(frame.into());
        self.changed.notify_one();
    }

    pub fn end(&self) {
        let mut waiting = self.waiting();
        if waiting.end == End::NotYet {
            waiting.end = End::Asked;
        }
        drop(waiting);
        self.changed.notify_one();
    }

    /// Returns whether the output ends after the pending frames, so that no message may follow.
    pub fn has_end(&self) -> bool {
        self.waiting().end == End::Asked
    }

    pub async fn next(&self) -> ControlFrame {
        loop {
            if let Some(frame) = self.take() {
                return frame;
            }
            self.changed.notified().await;
        }
    }

    fn take(&self) -> Option<ControlFrame> {
        let mut waiting = self.waiting();
        let frame = waiting.pong.take().or_else(|| waiting.close.take()).map(ControlFrame::Bytes);
        if frame.is_none() && waiting.end == End::Asked {
            waiting.end = End::Taken;
            return Some(ControlFrame::End);
        }
        frame
    }

    fn waiting(&self) -> MutexGuard<'_, UnsentFrames> {
        lock(&self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(frame: Frame) -> Bytes {
        let mut bytes = Vec::new();
        frame.format(&mut bytes).unwrap();
        bytes.into()
    }

    #[test]
    fn pings_without_reading_keep_one_pong_waiting_the_newest() {
        let frames = ControlFrames::default();
        for number in 0..10_000_u32 {
            frames.put(&bytes_of(Frame::pong(number.to_string())));
        }
        let last = bytes_of(Frame::pong("last"));
        frames.put(&[bytes_of(Frame::pong("late")), last.clone()].concat());
        assert_eq!(frames.take(), Some(ControlFrame::Bytes(last)));
        assert_eq!(frames.take(), None);
    }

    #[test]
    fn goodbye_goes_out_behind_the_pong_and_before_the_end() {
        let frames = ControlFrames::default();
        frames.close(CloseCode::Again, &"ä".repeat(100));
        frames.close(CloseCode::Normal, "later");
        frames.end();
        let pong = bytes_of(Frame::pong("p"));
        frames.put(&pong);
        assert!(frames.has_end());
        assert_eq!(frames.take(), Some(ControlFrame::Bytes(pong)));
        let Some(ControlFrame::Bytes(close)) = frames.take() else { panic!("no goodbye") };
        assert_eq!(close, [&[0x88, 124], &1013_u16.to_be_bytes()[..], "ä".repeat(61).as_bytes()].concat());
        assert_eq!((frames.take(), frames.take()), (Some(ControlFrame::End), None));
    }
}
