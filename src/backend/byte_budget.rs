//! Byte budget for queues.
//!
//! Owns: the number of queued bytes, and who waits until it falls.
//! Never: holds queued items, or refuses an item because of its size alone: a large item is
//! admitted as soon as any room is free.

use std::sync::Arc;

use tokio::sync::Semaphore;

/// Unit in which bytes are counted; each queued item takes at least one unit.
const PIECE_BYTES: usize = 1 << 10;

/// Budget of bytes that may be queued at the same time.
#[derive(Debug, Clone)]
pub struct ByteBudget(Arc<Semaphore>);

impl ByteBudget {
    /// Creates a budget of this many bytes, with no reservations.
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new((bytes / PIECE_BYTES).max(1))))
    }

    /// Waits for free room and reserves the minimum. `None` once the budget is closed. Cancel safe.
    pub async fn reserve(&self) -> Option<ByteReservation> {
        self.0.acquire().await.ok()?.forget();
        Some(ByteReservation { pieces: 1, of: Arc::clone(&self.0) })
    }

    /// Reserves the minimum if there is room now; never waits.
    pub fn try_reserve(&self) -> Option<ByteReservation> {
        self.0.try_acquire().ok()?.forget();
        Some(ByteReservation { pieces: 1, of: Arc::clone(&self.0) })
    }

    /// Returns the number of bytes that are not reserved.
    pub fn free_bytes(&self) -> usize {
        self.0.available_permits() * PIECE_BYTES
    }

    /// Closes the budget: current and later waits return `None`.
    pub fn close(&self) {
        self.0.close();
    }
}

/// Reserved bytes, released on drop.
#[derive(Debug)]
pub struct ByteReservation {
    pieces: usize,
    of: Arc<Semaphore>,
}

impl ByteReservation {
    /// Extends the reservation to this many bytes, or by all remaining room if that is less.
    pub fn grow_to(&mut self, bytes: usize) {
        if bytes >= PIECE_BYTES {
            self.pieces += self.of.forget_permits(bytes / PIECE_BYTES);
        }
    }

    /// Merges another reservation of the same budget, so that both are released together.
    pub fn join(&mut self, mut other: Self) {
        if Arc::ptr_eq(&self.of, &other.of) {
            self.pieces += std::mem::take(&mut other.pieces);
        }
    }
}

impl Drop for ByteReservation {
    fn drop(&mut self) {
        if self.pieces > 0 {
            self.of.add_permits(self.pieces);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn there_is_room_for_one_thing_that_is_too_large_and_for_nothing_besides() {
        let room = ByteBudget::new(4 * PIECE_BYTES);
        let mut small = room.try_reserve().unwrap();
        small.grow_to(PIECE_BYTES - 1);
        let mut large = room.try_reserve().unwrap();
        large.grow_to(100 * PIECE_BYTES);
        assert!(room.try_reserve().is_none());
        drop(small);
        let again = room.try_reserve().unwrap();
        drop(large);
        room.reserve().await.unwrap().grow_to(3 * PIECE_BYTES);
        drop(again);
        assert_eq!(room.0.available_permits(), 4);
        room.close();
        assert!(room.try_reserve().is_none() && room.reserve().await.is_none());
    }
}
