//! Compression of stored bytes.
//!
//! Owns: the decision to compress, which shows in the first bytes, and decompression.
//! Never: interprets the bytes. No stored plain value begins like a compressed one: a text begins
//! with `{`, and a pack of actions with a number below 2.

use std::borrow::Cow;
use std::io::{self, Read};

/// Prefix of compressed bytes: the magic number of a Zstandard frame.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Minimum size for compression, in bytes; smaller values hardly shrink.
const BYTES_MIN: usize = 512;

/// Zstandard's default compromise between speed and size.
const LEVEL: i32 = 3;

/// Compresses bytes if that saves at least an eighth of their size.
pub(super) fn compressed(plain: &[u8]) -> Cow<'_, [u8]> {
    if plain.len() < BYTES_MIN {
        return plain.into();
    }
    match zstd::bulk::compress(plain, LEVEL) {
        Ok(small) if small.len() <= plain.len() / 8 * 7 => small.into(),
        Ok(_) => plain.into(),
        Err(error) => {
            tracing::debug!(%error, "a value cannot be compressed: it is stored uncompressed");
            plain.into()
        }
    }
}

fn is_compressed(kept: &[u8]) -> bool {
    kept.starts_with(&MAGIC)
}

/// Decompresses bytes; reads at most one byte more than `bytes_max`.
fn plain(kept: &[u8], bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut plain = Vec::new();
    zstd::stream::read::Decoder::with_buffer(kept)?
        .take(bytes_max.saturating_add(1))
        .read_to_end(&mut plain)?;
    Ok(plain)
}

/// Returns the plain bytes of a stored value; `None` if it is damaged. The limit applies only to
/// compressed values.
pub(super) fn restored(kept: &[u8], bytes_max: u64) -> Option<Cow<'_, [u8]>> {
    if is_compressed(kept) {
        plain(kept, bytes_max).ok().map(Cow::Owned)
    } else {
        Some(kept.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_compressed_is_what_it_was_and_no_more_of_it_is_made_than_may_be() {
        for text in [String::new(), "short".to_owned(), "the same words again and again ".repeat(1000)] {
            let kept = compressed(text.as_bytes());
            assert_eq!(is_compressed(&kept), text.len() > BYTES_MIN);
            if is_compressed(&kept) {
                assert!(kept.len() < text.len() / 10);
                assert_eq!(plain(&kept, u64::MAX).unwrap(), text.as_bytes());
                assert_eq!(plain(&kept, 99).unwrap().len(), 100);
                assert!(plain(&kept[..kept.len() / 2], u64::MAX).is_err(), "half of it");
            }
        }
    }

    #[test]
    fn what_does_not_get_smaller_is_kept_as_it_is() {
        let noise: Vec<u8> =
            (0..5000_u32).flat_map(|n| crc32fast::hash(&n.to_le_bytes()).to_le_bytes()).collect();
        assert_eq!(&*compressed(&noise), noise);
    }
}
