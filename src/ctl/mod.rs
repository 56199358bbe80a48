//! The control socket: what can be asked of a bridge while it runs, and who asks.
//!
//! Promises: one JSON object a line, each answered by one line, `{"ok": …}` or
//! `{"error": "one line"}`; after `events` the lines are events until the client goes. Whatever
//! is sent is answered or cut off, and costs the bridge no more than a thread for a while. The
//! server is `run`'s, the client is `ringbridge ctl`. Whoever can open the socket (mode 0600) is
//! the operator.
//!
//! | request | answer |
//! | --- | --- |
//! | `{"do":"ports"}` | the ports: slot, name, kind, partner, and what the journal knows |
//! | `{"do":"stats"}` | the totals, as `run --json` prints them |
//! | `{"do":"port-add","spec":"vhost:/run/vm7.sock,queues=2"}` | the new port's name |
//! | `{"do":"port-del","name":"vhost:/run/vm7.sock"}` | its name; a number is as good |
//! | `{"do":"link","name":"…"}` | `{"up":false,"why":"no frontend is connected"}`; up, `why` is null |
//! | `{"do":"macs"}` | the addresses that a learning bridge knows: MAC, VLAN, port, age in seconds |
//! | `{"do":"clear"}` | totals count from now on |
//! | `{"do":"stop"}` | the bridge ends as it does by SIGTERM |
//! | `{"do":"events"}` | `true`, then an event a line |
//!
//! With `"text":true` beside it, `ports`, `stats`, `macs` and `link` are answered with a text for
//! people.

#![forbid(unsafe_code)]

mod client;
mod clients;
mod server;
mod tables;

pub use client::{CtlArgs, CtlError, run};
pub use server::{Server, ServerError};

use serde::{Deserialize, Serialize};
use std::io::{self, BufRead};
use std::path::PathBuf;

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Request {
    /// Which ports there are.
    Ports {
        /// For people.
        #[serde(default)]
        text: bool,
    },
    /// What they have moved and lost.
    Stats {
        /// For people, with the rates of half a second.
        #[serde(default)]
        text: bool,
    },
    /// Which addresses a learning bridge knows.
    Macs {
        /// For people.
        #[serde(default)]
        text: bool,
    },
    /// Open a port.
    PortAdd {
        /// As on the command line; relative paths are relative to the bridge.
        spec: String,
    },
    /// Close one.
    PortDel {
        /// Its name.
        name: String,
    },
    /// Is its link up?
    Link {
        /// The port's name.
        name: String,
        /// For people.
        #[serde(default)]
        text: bool,
    },
    /// Count from now on.
    Clear,
    /// End.
    Stop,
    /// Tell what happens.
    Events,
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// It was done.
    Ok(serde_json::Value),
    /// Why it was not.
    Error(String),
}

/// Longest line of either side but for answers, in bytes.
const LONGEST: u64 = 64 << 10;

/// The next line without its end; `None` at the end of the stream.
///
/// # Errors
/// `InvalidData` for a line that is too long or no text; else the stream's.
fn read_line(reader: &mut impl BufRead, longest: u64) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    let n = io::Read::take(&mut *reader, longest).read_until(b'\n', &mut line)?;
    if n == 0 {
        return Ok(None);
    }
    if line.pop() != Some(b'\n') {
        let kind = if n as u64 == longest {
            io::ErrorKind::InvalidData
        } else {
            io::ErrorKind::UnexpectedEof
        };
        return Err(kind.into());
    }
    String::from_utf8(line).map(Some).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Where bridges have their sockets unless they are told: a folder of the user's own.
fn folder() -> Option<PathBuf> {
    let runtime = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?);
    runtime.is_absolute().then(|| runtime.join("ringbridge"))
}
