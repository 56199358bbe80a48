//! The socket file: made, replaced, refused, removed.

use super::among_others;
use super::guest::{Held, journal, negotiate, spec, wait};
use ringbridge::config::VhostSpec;
use ringbridge::control::{OpenError, VhostPort};
use ringbridge::sys::socket_file::SocketFileError;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

fn open(spec: &VhostSpec) -> Result<VhostPort, OpenError> {
    VhostPort::open(&journal(), spec, Held::default())
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let _guard = among_others();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    drop(UnixListener::bind(&path).unwrap());
    let port = open(&spec(&path)).unwrap();
    let error = open(&spec(&path)).unwrap_err();
    assert!(matches!(error, OpenError::Socket(SocketFileError::Live { .. })));
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    negotiate(UnixStream::connect(&path).unwrap());
    port.stop();
    assert!(!path.exists());
    // A listener whose backlog is full is live too, and is not waited for.
    let _busy = UnixListener::bind(&path).unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = ringbridge::sys::unix::connect(&path) {
        waiting.push(stream);
        assert!(waiting.len() < 10_000);
    }
    assert!(matches!(open(&spec(&path)), Err(OpenError::Socket(SocketFileError::Live { .. }))));
    assert!(path.exists());
}

#[test]
fn what_is_not_a_socket_is_left_alone() {
    let _guard = among_others();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "precious").unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for path in [&file, &link, &dir.path().to_path_buf()] {
        assert!(
            matches!(open(&spec(path)), Err(OpenError::Socket(SocketFileError::NotSocket { .. }))),
            "{path:?}"
        );
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    assert!(link.is_symlink());
}

#[test]
fn impossible_places_are_explained_in_one_line() {
    let _guard = among_others();
    let dir = tempfile::tempdir().unwrap();
    let nowhere = open(&spec(&dir.path().join("missing/s"))).unwrap_err();
    assert!(matches!(nowhere, OpenError::Socket(SocketFileError::NoDirectory { .. })));
    let long = dir.path().join("x".repeat(108));
    for client in [false, true] {
        let error = open(&VhostSpec { client, ..spec(&long) }).unwrap_err();
        assert!(matches!(error, OpenError::Socket(SocketFileError::TooLong { .. })));
        assert!(!error.to_string().contains('\n'));
        let nothing = VhostSpec { client, ..spec(Path::new("")) };
        assert!(matches!(open(&nothing), Err(OpenError::Socket(SocketFileError::Create { .. }))));
    }
    let too_many = VhostSpec { queues: 129, ..spec(&dir.path().join("s")) };
    assert!(matches!(open(&too_many), Err(OpenError::Queues(129))));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn mode_and_owner_are_applied() {
    let _guard = among_others();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    for mode in [0o600, 0o666] {
        let port = open(&VhostSpec { mode: Some(mode), ..spec(&path) }).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, mode);
        port.stop();
    }
    let me = fs::metadata(dir.path()).unwrap();
    let (user, group) = if me.uid() == 0 { (1234, 4321) } else { (me.uid(), me.gid()) };
    let port = open(&VhostSpec { owner: Some((user, Some(group))), ..spec(&path) }).unwrap();
    let made = fs::metadata(&path).unwrap();
    assert_eq!((made.uid(), made.gid()), (user, group));
    port.stop();
    if me.uid() != 0 {
        let root = VhostSpec { owner: Some((0, None)), ..spec(&path) };
        assert!(matches!(open(&root), Err(OpenError::Socket(SocketFileError::Permissions { .. }))));
        assert!(!path.exists());
    }
}

#[test]
fn only_our_own_file_is_removed() {
    let _guard = among_others();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let port = open(&spec(&path)).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, "somebody else's").unwrap();
    port.stop();
    assert!(path.exists());
    fs::remove_file(&path).unwrap();
    drop(open(&spec(&path)).unwrap());
    wait("removed", || !path.exists());
}
