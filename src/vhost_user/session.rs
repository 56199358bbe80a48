//! A connection from its first message to its end.
//!
//! Promises: messages are handled one at a time on the calling thread; a refused message is
//! answered and the connection lives, any other error ends it; whatever the end, the rings are
//! taken back and everything that the frontend sent is closed and unmapped before
//! [`run_session`] returns. Shutting the socket down from another thread ends it too.

use super::handler::Handler;
use super::{Device, Rings};
use crate::sys::unix;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vhost::vhost_user::message::{FrontendReq, MAX_MSG_SIZE, VhostUserHeaderFlag};
use vhost::vhost_user::{BackendReqHandler, Error, Result, VhostUserBackendReqHandlerMut};

/// Bytes of a message's header: request, flags and size of the rest, 32 bits each, in the
/// byte order of the machine.
const HEADER: usize = 12;

/// Serve the frontend behind `stream` (which is blocking) until it goes away.
pub fn run_session<R: Rings>(stream: &UnixStream, device: &Device, workers: &R) {
    let name = &device.name;
    tracing::info!("{name}: frontend connected");
    let handler = Arc::new(Mutex::new(Handler::new(device, workers)));
    let end = serve(stream, &handler);
    lock(&handler).finish();
    match end {
        Error::Disconnected => tracing::info!("{name}: frontend disconnected"),
        error => tracing::warn!("{name}: connection closed: {error}"),
    }
}

/// Handle messages until one of them ends the connection.
fn serve<R: Rings>(stream: &UnixStream, handler: &Arc<Mutex<Handler<R>>>) -> Error {
    let mut messages = match stream.try_clone() {
        Ok(socket) => BackendReqHandler::from_stream(socket, Arc::clone(handler)),
        Err(error) => return Error::SocketError(error),
    };
    loop {
        // What comes next must be known before the crate handles it: for what it refuses
        // although we accept it.
        let next = Next::peek(stream);
        let done = match &next {
            Some(next) if next.request == FrontendReq::SET_VRING_ENABLE => {
                set_vring_enable(stream, next, &mut lock(handler))
            }
            _ => messages.handle_request(),
        };
        match done {
            // The handler has logged what it refused, and it was answered.
            Ok(()) | Err(Error::ReqHandlerError(_)) => {}
            // The crate answers a malformed table, or one without fds, by itself; the rings
            // must not go on in the old one.
            Err(Error::InvalidMessage) if next.is_some_and(|next| next.is_table()) => {
                if let Err(error) = lock(handler).refuse_table() {
                    return error;
                }
            }
            Err(error) => return error,
        }
    }
}

/// The crate closes the connection if this comes before `SET_FEATURES`, where QEMU sends it
/// first.
fn set_vring_enable<R: Rings>(
    mut stream: &UnixStream,
    next: &Next,
    handler: &mut Handler<R>,
) -> Result<()> {
    let mut message = [0; HEADER + 8];
    if next.size != 8 {
        return Err(Error::InvalidMessage);
    }
    stream.read_exact(&mut message).map_err(Error::SocketBroken)?;
    let enable = match word(&message, HEADER + 4) {
        0 => false,
        1 => true,
        _ => return Err(Error::InvalidParam),
    };
    let done = handler.set_vring_enable(word(&message, HEADER), enable);
    if next.need_reply && handler.answers() {
        let answer = next.answer(u64::from(done.is_err()));
        stream.write_all(&answer).map_err(Error::SocketBroken)?;
    }
    done
}

/// The header of the message that comes next.
struct Next {
    request: FrontendReq,
    need_reply: bool,
    size: u32,
}

impl Next {
    /// Wait for a message and look at its header, if that is complete and one that the crate
    /// accepts. The message and its fds stay where they are.
    fn peek(stream: &UnixStream) -> Option<Self> {
        let mut header = [0; HEADER];
        if unix::peek(stream, &mut header).ok()? < HEADER {
            return None;
        }
        let (flags, size) = (word(&header, 4), word(&header, 8));
        let accepted = flags & !VhostUserHeaderFlag::NEED_REPLY.bits() == 1;
        if !accepted || size as usize > MAX_MSG_SIZE {
            return None;
        }
        let request = FrontendReq::try_from(word(&header, 0)).ok()?;
        let need_reply = flags & VhostUserHeaderFlag::NEED_REPLY.bits() != 0;
        Some(Next { request, need_reply, size })
    }

    fn is_table(&self) -> bool {
        self.request == FrontendReq::SET_MEM_TABLE
    }

    /// A whole message that answers this one with a number.
    fn answer(&self, value: u64) -> [u8; HEADER + 8] {
        let mut message = [0; HEADER + 8];
        message[..4].copy_from_slice(&(self.request as u32).to_ne_bytes());
        message[4..8].copy_from_slice(&(1 | VhostUserHeaderFlag::REPLY.bits()).to_ne_bytes());
        message[8..12].copy_from_slice(&8u32.to_ne_bytes());
        message[12..].copy_from_slice(&value.to_ne_bytes());
        message
    }
}

/// The 32-bit word at `at`.
fn word(message: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([message[at], message[at + 1], message[at + 2], message[at + 3]])
}

fn lock<'a, 'h, R>(handler: &'a Mutex<Handler<'h, R>>) -> MutexGuard<'a, Handler<'h, R>> {
    handler.lock().unwrap_or_else(PoisonError::into_inner)
}
