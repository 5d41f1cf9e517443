//! Sockets on this machine that only processes of this user may use.
//!
//! Owns: binding them, connecting to them, and the user of a peer.
//! Never: reads or writes a message.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
use self::unix as half;
#[cfg(windows)]
use self::windows as half;

pub use self::half::{
    bind, connect, connect_now, foreign_peer, has_listener, has_stopped_reading, into_async, is_socket,
    keep_alive, listen, set_timeouts, shut_down, split, take_over, AsyncListener, BlockingStream,
    LocalListener, LocalReadHalf, LocalWriteHalf, Stream, SERVE_CLIENTS,
};
#[cfg(windows)]
pub use self::half::{new_pipe, PIPES, PIPE_BYTES};

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn peer_of_the_same_user_is_no_foreigner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        assert!(!is_socket(&path) && !has_listener(&path));
        let listener = listen(bind(&path).unwrap()).unwrap();
        let (accepted, connected) = tokio::join!(listener.accept(), connect(&path));
        assert_eq!(foreign_peer(&accepted.unwrap().0).unwrap(), None);
        assert!(is_socket(&path) && has_listener(&path));
        drop((connected.unwrap(), listener));
        assert!(is_socket(&path) && !has_listener(&path));
    }
}
