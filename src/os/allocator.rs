//! The program's allocator.
//!
//! Owns: replacing musl's allocator, which takes one lock and searches for free memory at each
//! call. Elsewhere the system's allocator serves.
//! Never: counts or limits memory.

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
