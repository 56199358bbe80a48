//! A relay between QEMU and the bridge that takes one bit out of a message: QEMU believes that
//! what we write is logged, and it is not. For the test that must fail without the log.
//!
//! Promises: every other byte and every fd passes as it came, in both directions; it ends with
//! the connection.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// A message's request, flags and size of payload, 4 bytes each (vhost-user, "Header").
const HEADER: usize = 12;
const SET_FEATURES: u32 = 2;
const LOG_ALL: u64 = 1 << 26;

/// Accept one connection at `path` and pass on to `backend` all but the wish for a log.
pub fn without_log(path: &Path, backend: &Path) {
    let listener = UnixListener::bind(path).unwrap();
    let backend = PathBuf::from(backend);
    thread::spawn(move || {
        let (frontend, _) = listener.accept().unwrap();
        let backend = UnixStream::connect(backend).unwrap();
        let back = (backend.try_clone().unwrap(), frontend.try_clone().unwrap());
        // Answers carry no fds that matter here: what has an own channel is not offered.
        thread::spawn(move || {
            let (mut from, mut to) = back;
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Both);
        });
        while pass(&frontend, &backend).is_some() {}
        let _ = backend.shutdown(std::net::Shutdown::Both);
    });
}

/// Pass a message on; nothing when there is none.
fn pass(from: &UnixStream, to: &UnixStream) -> Option<()> {
    let mut message = vec![0; HEADER];
    let (count, fds) = receive(from, &mut message)?;
    (&mut (&*from)).read_exact(&mut message[count..]).ok()?;
    let word = |at: usize| u32::from_ne_bytes(message[at..at + 4].try_into().unwrap());
    let (request, size) = (word(0), word(8) as usize);
    let mut payload = vec![0; size];
    (&mut (&*from)).read_exact(&mut payload).ok()?;
    if request == SET_FEATURES {
        let features = u64::from_ne_bytes(payload[..8].try_into().unwrap());
        payload[..8].copy_from_slice(&(features & !LOG_ALL).to_ne_bytes());
    }
    message.extend(payload);
    let raw: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let sent = if raw.is_empty() { 0 } else { to.send_with_fds(&[&message[..]], &raw).ok()? };
    (&mut (&*to)).write_all(&message[sent..]).ok()
}

/// The first bytes of a message, and its fds.
fn receive(from: &UnixStream, bytes: &mut [u8]) -> Option<(usize, Vec<File>)> {
    let mut fds = [0; 32];
    let mut parts = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
    // SAFETY: the one part is `bytes`, which outlives the call.
    let (count, fds_count) = unsafe { from.recv_with_fds(&mut parts, &mut fds) }.ok()?;
    // SAFETY: they were just received, and are nobody else's.
    let own = |fd: &i32| unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(*fd) };
    let fds = fds[..fds_count].iter().map(own).collect();
    (count > 0).then_some((count, fds))
}
