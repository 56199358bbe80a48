//! A connection from its first message to its end.
//!
//! Promises: messages are handled one at a time on the calling thread; a refused message is
//! answered and the connection lives, any other error ends it; whatever the end, the rings are
//! taken back and everything that the frontend sent is closed and unmapped before
//! [`run_session`] returns. Shutting the socket down from another thread ends it too; if only its
//! read side is, then the frontend sees the end after the rings were taken back.

use super::handler::Handler;
use super::{Device, Rings};
use crate::journal::Event;
use crate::memory::Alarm;
use crate::sys::unix;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vhost::vhost_user::message::{FrontendReq, MAX_MSG_SIZE, VhostUserHeaderFlag};
use vhost::vhost_user::{BackendReqHandler, Error, Result, VhostUserBackendReqHandlerMut};

/// Bytes of a message's header: request, flags and size of the rest, 32 bits each, in the
/// byte order of the machine.
const HEADER: usize = 12;

/// Serve the frontend behind `stream` (which is blocking) until it goes away.
pub fn run_session<R: Rings>(stream: &UnixStream, device: &Device, workers: &R) {
    let journal = &device.journal;
    journal.tell(Event::Connected);
    let alarm = match Alarm::of(stream) {
        Ok(alarm) => Arc::new(alarm),
        Err(error) => {
            let why = Some(format!("cannot be served: {error}"));
            return journal.tell(Event::Disconnected { why });
        }
    };
    let handler = Arc::new(Mutex::new(Handler::new(device, workers, alarm)));
    let (request, end) = serve(stream, &handler);
    lock(&handler).finish();
    // Whoever still has a ring (a worker that hangs) keeps its alarm, and with that an fd of the
    // connection: the frontend must see the end of it all the same. It fails if it was faster.
    let _ = stream.shutdown(Shutdown::Both);
    let why = match end {
        _ if lock(&handler).was_truncated() => {
            let why = "a file that it shared is shorter than it was, or has no more pages";
            journal.tell(Event::refused("memory", "memory_truncated", why.into()));
            Some(why.into())
        }
        Error::Disconnected => lock(&handler).why_it_left(),
        // The handler has told.
        Error::BackendInternalError => Some("what was refused has no answer that says so".into()),
        error => {
            let request = request.map_or("a message".into(), |request| format!("{request:?}"));
            journal.tell(Event::refused(request, "bad_message", error.to_string()));
            Some(error.to_string())
        }
    };
    journal.tell(Event::Disconnected { why });
}

/// Handle messages until one of them ends the connection: which, and how.
fn serve<R: Rings>(
    stream: &UnixStream,
    handler: &Arc<Mutex<Handler<R>>>,
) -> (Option<FrontendReq>, Error) {
    let mut messages = match stream.try_clone() {
        Ok(socket) => BackendReqHandler::from_stream(socket, Arc::clone(handler)),
        Err(error) => return (None, Error::SocketError(error)),
    };
    loop {
        // What comes next must be known before the crate handles it: for what it refuses
        // although we accept it.
        let next = Next::peek(stream);
        let done = match &next {
            Some(next) if next.is_ours() => handle(stream, next, &mut lock(handler)),
            _ => messages.handle_request(),
        };
        let request = next.map(|next| next.request);
        match done {
            // The handler has told what it refused, and it was answered.
            Ok(()) | Err(Error::ReqHandlerError(_)) => {}
            // The crate answers a malformed table, or one without fds, by itself; the rings
            // must not go on in the old one.
            Err(Error::InvalidMessage) if request == Some(FrontendReq::SET_MEM_TABLE) => {
                if let Err(error) = lock(handler).refuse_table() {
                    return (request, error);
                }
            }
            Err(error) => return (request, error),
        }
    }
}

/// Bytes of the body of most messages: a 64-bit number, or two of 32 bits.
const BODY: usize = 8;

/// Handle a message that the crate would end the connection for.
fn handle<R: Rings>(mut stream: &UnixStream, next: &Next, handler: &mut Handler<R>) -> Result<()> {
    let mut message = [0; HEADER + BODY];
    let message = &mut message[..HEADER + next.size as usize];
    // Fds that came with it are closed by the system, because nobody takes them.
    stream.read_exact(message).map_err(Error::SocketBroken)?;
    let mut body = [0; BODY];
    body[..message.len() - HEADER].copy_from_slice(&message[HEADER..]);
    let value = u64::from_ne_bytes(body);
    let done = match next.request {
        // Refused by the crate before `SET_FEATURES`, where QEMU sends it first.
        FrontendReq::SET_VRING_ENABLE => match word(&body, 4) {
            num @ (0 | 1) => handler.set_vring_enable(word(&body, 0), num == 1),
            _ => return Err(Error::InvalidParam),
        },
        FrontendReq::SEND_RARP => {
            let [mac @ .., _, _] = body;
            handler.send_rarp(mac)
        }
        FrontendReq::NET_SET_MTU => handler.set_mtu(value),
        FrontendReq::SET_STATUS => handler.set_status(value),
        FrontendReq::GET_STATUS => return reply(stream, next, handler.status()),
        // An fd to signal when a page was logged, which nobody waits for any more.
        _ => Ok(()),
    };
    if next.need_reply && handler.answers() {
        reply(stream, next, u64::from(done.is_err()))?;
    }
    done
}

fn reply(mut stream: &UnixStream, next: &Next, value: u64) -> Result<()> {
    stream.write_all(&next.answer(value)).map_err(Error::SocketBroken)
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

    /// Is it one that the crate does not handle, or not always, and of a size that it can have?
    fn is_ours(&self) -> bool {
        match self.request {
            FrontendReq::SET_VRING_ENABLE
            | FrontendReq::SEND_RARP
            | FrontendReq::NET_SET_MTU
            | FrontendReq::SET_STATUS => self.size as usize == BODY,
            FrontendReq::GET_STATUS => self.size == 0,
            FrontendReq::SET_LOG_FD => self.size == 0 || self.size as usize == BODY,
            _ => false,
        }
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
