//! Messages as they are on the wire, right or wrong, with whatever fds; and what this process
//! holds.

use super::attack::Attack;
use super::common::bridge::{Bed, LIMIT};
use super::common::wait_until;
use std::io::{self, Read};
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

pub const GET_FEATURES: u32 = 1;
pub const SET_FEATURES: u32 = 2;
pub const SET_OWNER: u32 = 3;
pub const SET_MEM_TABLE: u32 = 5;
pub const SET_VRING_NUM: u32 = 8;
pub const SET_VRING_ADDR: u32 = 9;
pub const SET_VRING_BASE: u32 = 10;
pub const GET_VRING_BASE: u32 = 11;
pub const SET_VRING_KICK: u32 = 12;
pub const SET_VRING_CALL: u32 = 13;
pub const SET_VRING_ERR: u32 = 14;
pub const GET_PROTOCOL_FEATURES: u32 = 15;
pub const SET_VRING_ENABLE: u32 = 18;
pub const NET_SET_MTU: u32 = 20;
pub const GET_INFLIGHT_FD: u32 = 31;
pub const SET_INFLIGHT_FD: u32 = 32;
pub const ADD_MEM_REG: u32 = 37;
pub const REM_MEM_REG: u32 = 38;
pub const SET_STATUS: u32 = 39;
/// Version 1, and an answer is asked for.
pub const FLAGS: u32 = 9;

/// A message.
#[derive(Clone, Debug, Default)]
pub struct Message {
    pub request: u32,
    pub flags: u32,
    /// What the header says.
    pub size: u32,
    pub body: Vec<u8>,
    pub fds: Vec<RawFd>,
}

impl Message {
    /// As it should be.
    pub fn new(request: u32, words: &[u64]) -> Self {
        let body: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        Message { request, flags: FLAGS, size: body.len() as u32, body, fds: Vec::new() }
    }

    /// Of an index and a number.
    pub fn state(request: u32, index: u32, num: u32) -> Self {
        Self::new(request, &[u64::from(index) | u64::from(num) << 32])
    }

    /// `SET_MEM_TABLE`; each region is guest address, bytes, user address, offset.
    pub fn table(regions: &[[u64; 4]], fds: &[RawFd]) -> Self {
        let words = [&[regions.len() as u64], regions.as_flattened()].concat();
        Self::new(SET_MEM_TABLE, &words).with(fds)
    }

    pub fn with(self, fds: &[RawFd]) -> Self {
        Message { fds: fds.to_vec(), ..self }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let header = [self.request, self.flags, self.size];
        [&header.map(u32::to_ne_bytes).concat(), self.body.as_slice()].concat()
    }

    /// Send it; fds go with the first byte.
    pub fn send(&self, stream: &UnixStream) -> io::Result<()> {
        let bytes = self.bytes();
        stream.send_with_fds(&[&bytes[..]], &self.fds).map_err(io::Error::from)?;
        Ok(())
    }
}

/// A connection to a port.
pub fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// The next answer: of which request, and its body. `None`: the connection is closed.
pub fn answer(mut stream: &UnixStream) -> Option<(u32, Vec<u8>)> {
    let mut header = [0; 12];
    match stream.read_exact(&mut header) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => panic!("no answer"),
        Err(_) => return None,
    }
    let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
    let mut body = vec![0; word(8) as usize];
    stream.read_exact(&mut body).ok()?;
    Some((word(0), body))
}

/// Everything sent so far was handled, and the connection lives.
pub fn served(stream: &UnixStream) -> bool {
    let ask = Message { flags: 1, ..Message::new(GET_FEATURES, &[]) };
    if ask.send(stream).is_err() {
        return false;
    }
    std::iter::from_fn(|| answer(stream)).any(|(request, _)| request == GET_FEATURES)
}

/// Fds of this process, the bridge's and the guests' alike.
pub fn fds() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// No more fds than before, and no fewer, in the end.
pub fn expect_fds(before: usize, what: &str) {
    assert!(wait_until(LIMIT, || fds() == before), "{what}: {} fds, {before} before", fds());
}

/// What the frontend of the attacked port was refused so far: for `reason`, and altogether.
pub fn refused(bed: &Bed, reason: &str) -> (u64, u64) {
    let refused = bed.counters().ports.swap_remove(0).refused;
    (refused.get(reason).copied().unwrap_or(0), refused.values().sum())
}

/// What becomes of the attacker's session and its running ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Nothing: the ring goes on.
    Works,
    /// The ring stands still until something else is said.
    Stopped,
    /// The connection is closed.
    Closed,
}

/// Send a message that is refused for `reason`, while the ring runs: counted once, the session
/// and the ring are as they should be `after`, no fd is kept, and in the end the ring works (unless
/// the connection is closed).
pub fn expect_refused(attack: &mut Attack, message: &Message, reason: &str, after: After) {
    let what = format!("{message:x?}, {reason}");
    let (fds, (count, total)) = (fds(), refused(attack.bed, reason));
    // It fails if the connection is closed before the last byte is sent.
    let _ = message.send(attack.raw.session.stream());
    let lives = served(attack.raw.session.stream());
    assert_eq!(lives, after != After::Closed, "{what}");
    attack.bed.expect(&what, |_| refused(attack.bed, reason).1 > total);
    assert_eq!(refused(attack.bed, reason), (count + 1, total + 1), "{what}");
    match after {
        After::Works => {
            expect_fds(fds, &what);
            attack.settle();
            attack.expect_working(&what);
        }
        After::Stopped => {
            attack.expect_standing(&what);
            // What was made available meanwhile is forgotten before it runs again.
            attack.stop();
            attack.ring().reset(7);
            attack.raw.session.send_memory(&attack.raw.ram).unwrap();
            attack.start(7);
            attack.expect_working(&what);
            expect_fds(fds, &what);
        }
        After::Closed => {}
    }
}
