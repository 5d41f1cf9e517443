//! Tracks of a trace, on which its spans lie.
//!
//! A viewer shows nested spans of a track as calls, and Perfetto drops a span that overlaps with
//! another one otherwise. So a name has as many tracks as it has spans at once.
//!
//! Owns: the numbers of the tracks, and until when each is taken.
//! Never: writes an event.

use serde_json::{json, Value};

/// Number of the process that the tracks belong to.
pub(super) const PROCESS: u32 = 1;

/// Number of the first track. Viewers take 0 for an idle processor, and a track with the number of
/// its process for the main thread.
const FIRST: usize = PROCESS as usize + 1;

/// Track of spans that do not overlap.
#[derive(Debug)]
struct Track {
    name: &'static str,
    /// End of its last span, in microseconds.
    end: f64,
}

/// All tracks of a trace.
#[derive(Debug, Default)]
pub(super) struct Tracks(Vec<Track>);

impl Tracks {
    /// Returns the number of the track for a span of this name and time, in microseconds, and the
    /// event that introduces the track if it is new. The spans of a name must come in the order of
    /// their ends, or all in that of their beginnings.
    pub(super) fn place(&mut self, name: &'static str, from: f64, until: f64) -> (usize, Option<Value>) {
        let free = self.0.iter().position(|track| track.name == name && track.end <= from);
        let at = free.unwrap_or(self.0.len());
        let number = FIRST + at;
        match self.0.get_mut(at) {
            Some(track) => {
                track.end = until;
                (number, None)
            }
            None => {
                self.0.push(Track { name, end: until });
                let introduction = json!({ "name": "thread_name", "ph": "M", "pid": PROCESS, "tid": number,
                    "args": { "name": name } });
                (number, Some(introduction))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_of_a_track_do_not_overlap() {
        let mut tracks = Tracks::default();
        let spans = [("a", 0.0, 2.0), ("a", 1.0, 3.0), ("b", 1.0, 3.0), ("a", 2.0, 4.0), ("a", 3.0, 5.0)];
        let placed = spans.map(|(name, from, until)| tracks.place(name, from, until));
        assert_eq!(placed.each_ref().map(|(number, _)| *number), [2, 3, 4, 2, 3]);
        let introduced = placed.each_ref().map(|(_, event)| event.is_some());
        assert_eq!(introduced, [true, true, true, false, false]);
    }
}
