//! `ringbridge ctl`: ask a bridge that runs, print what it answers.
//!
//! Promises: finds the bridge's socket or says in one line what to give; every wait has a limit,
//! but for `events`, which end with the bridge. Called by `main`.

use super::{Answer, Request, folder, read_line};
use crate::sys::{self, unix};
use std::io::{self, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Deleting a port may take as long as its session does to end.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest answer, in bytes: the ports with all their rings.
const LONGEST_ANSWER: u64 = 64 << 20;

/// What `ringbridge ctl` was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CtlArgs {
    /// The bridge's socket.
    pub control: Option<PathBuf>,
    /// Print the answer as it came.
    pub json: bool,
    /// What to ask.
    pub request: Request,
}

/// Why there was no answer, or not the one hoped for.
#[derive(Debug, thiserror::Error)]
pub enum CtlError {
    /// Nobody there.
    #[error("no ringbridge listens on {}: {source}; is it running?", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Nothing to choose from.
    #[error("no ringbridge with a control socket was found; give its --control PATH")]
    NoBridge,
    /// Too much to choose from.
    #[error("several run here: {}; give one as --control PATH", paths(.0))]
    Several(Vec<PathBuf>),
    /// The connection broke.
    #[error("the bridge did not answer: {0}")]
    Stream(#[from] io::Error),
    /// No answer of this protocol.
    #[error("the bridge's answer makes no sense: {0}")]
    Nonsense(#[from] serde_json::Error),
    /// It said no.
    #[error("{0}")]
    Refused(String),
}

fn paths(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Ask and print.
///
/// # Errors
/// In one line.
pub fn run(args: &CtlArgs) -> Result<(), CtlError> {
    let mut stream = connect(args.control.as_deref())?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_string(&args.request)?;
    line.push('\n');
    // One that is sent away at once cannot ask, but is told why.
    let asked = stream.write_all(line.as_bytes());
    let mut reader = BufReader::new(&stream);
    let end = || asked.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into());
    let line = read_line(&mut reader, LONGEST_ANSWER)?.ok_or_else(end)?;
    match serde_json::from_str(&line)? {
        Answer::Error(why) => return Err(CtlError::Refused(one_line(&why))),
        Answer::Ok(_) if args.json && args.request != Request::Events => {
            sys::print(&format!("{line}\n"));
        }
        Answer::Ok(serde_json::Value::String(text)) => match &args.request {
            Request::PortAdd { .. } => sys::print(&format!("added {text}\n")),
            Request::PortDel { .. } => sys::print(&format!("deleted {text}\n")),
            _ => sys::print(&text),
        },
        Answer::Ok(_) => {}
    }
    if args.request == Request::Events {
        stream.set_read_timeout(None)?;
        while let Some(line) = read_line(&mut reader, LONGEST_ANSWER)? {
            // Until nobody reads them any more.
            let mut stdout = io::stdout().lock();
            if writeln!(stdout, "{line}").and_then(|()| stdout.flush()).is_err() {
                break;
            }
        }
    }
    Ok(())
}

/// What is refused may be told by words of whoever asked.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn connect(path: Option<&Path>) -> Result<UnixStream, CtlError> {
    if let Some(path) = path {
        return unix::connect(path)
            .map_err(|source| CtlError::Connect { path: path.into(), source });
    }
    let entries = folder().and_then(|folder| std::fs::read_dir(folder).ok());
    let mut sockets: Vec<_> = entries.into_iter().flatten().flatten().map(|e| e.path()).collect();
    sockets.sort();
    // What a killed bridge has left behind does not answer.
    let live = |path: PathBuf| unix::connect(&path).ok().map(|stream| (path, stream));
    let mut live: Vec<_> = sockets.into_iter().filter_map(live).collect();
    match live.len() {
        0 => Err(CtlError::NoBridge),
        1 => Ok(live.remove(0).1),
        _ => Err(CtlError::Several(live.into_iter().map(|(path, _)| path).collect())),
    }
}
