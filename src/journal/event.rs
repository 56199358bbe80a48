//! What can happen to a port, in words and as JSON.
//!
//! Promises: an event is one line of text without the port's name, and one JSON object whose
//! `event` names it in snake case. Told to the journal.

#![forbid(unsafe_code)]

use super::Status;
use serde::Serialize;
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tracing::Level;

/// Something that happened to a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The port was added while the bridge runs.
    Added {
        /// Its number.
        slot: usize,
    },
    /// The port was deleted.
    Deleted {
        /// The number that it had.
        slot: usize,
    },
    /// A frontend has connected.
    Connected,
    /// It is gone, or was sent away.
    Disconnected {
        /// What was wrong with it; `None` if it just left.
        why: Option<String>,
    },
    /// It has acknowledged these virtio features.
    Features {
        /// Bit by bit.
        features: u64,
        /// Their names.
        names: String,
    },
    /// It has shared this memory.
    Memory {
        /// All regions together.
        bytes: u64,
        /// Their number.
        regions: usize,
    },
    /// It has set the MTU.
    Mtu {
        /// Bytes of a packet without its Ethernet header.
        mtu: u16,
    },
    /// A ring has changed.
    Ring {
        /// Index of the virtqueue.
        ring: u16,
        /// A worker has it.
        running: bool,
        /// It may move packets.
        enabled: bool,
        /// Its size.
        entries: u16,
    },
    /// A ring contradicts itself and was stopped.
    Broken {
        /// Index of the virtqueue.
        ring: u16,
        /// The contradiction.
        why: String,
    },
    /// The first queue pair works, or none does any more.
    Link {
        /// One works.
        up: bool,
    },
    /// A message of the frontend's was refused.
    Refused {
        /// The message's name.
        request: String,
        /// What it is counted as.
        reason: &'static str,
        /// What was wrong with it.
        why: String,
    },
    /// What else the operator should know.
    Note {
        /// What to know.
        text: String,
    },
    /// A failure of our own, or of the machine.
    Failure {
        /// What failed.
        text: String,
    },
    /// A follower was behind, and this many events were left out.
    Missed {
        /// How many.
        events: u64,
    },
}

impl Event {
    /// A message `request` was refused, to be counted as `reason`.
    pub fn refused(request: impl Into<String>, reason: &'static str, why: String) -> Self {
        Event::Refused { request: request.into(), reason, why }
    }

    /// How loud its line is.
    pub(super) fn level(&self) -> Level {
        match self {
            Event::Failure { .. } => Level::ERROR,
            Event::Refused { .. } | Event::Broken { .. } | Event::Disconnected { why: Some(_) } => {
                Level::WARN
            }
            _ => Level::INFO,
        }
    }

    /// What it means for the port's present state.
    pub(super) fn note(&self, status: &mut Status) {
        match self {
            Event::Connected => {
                status.connected = true;
                status.connects += 1;
            }
            Event::Disconnected { .. } => {
                status.connected = false;
                (status.features, status.feature_names) = (0, String::new());
                (status.memory, status.regions, status.mtu) = (0, 0, None);
            }
            Event::Features { features, names } => {
                (status.features, status.feature_names) = (*features, names.clone());
            }
            Event::Memory { bytes, regions } => {
                (status.memory, status.regions) = (*bytes, *regions);
            }
            Event::Mtu { mtu } => status.mtu = Some(*mtu),
            Event::Link { up } => status.link = *up,
            Event::Broken { .. } => *status.refused.entry("ring_broken").or_default() += 1,
            Event::Refused { reason, .. } => *status.refused.entry(reason).or_default() += 1,
            _ => {}
        }
    }
}

impl Display for Event {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        match self {
            Event::Added { slot } => write!(f, "added as port {slot}"),
            Event::Deleted { slot } => write!(f, "deleted, was port {slot}"),
            Event::Connected => f.write_str("frontend connected"),
            Event::Disconnected { why: None } => f.write_str("frontend disconnected"),
            Event::Disconnected { why: Some(why) } => write!(f, "frontend disconnected: {why}"),
            Event::Features { features, names } => write!(f, "features {features:#x}: {names}"),
            Event::Memory { bytes, regions } => {
                write!(f, "memory: {} MiB, {regions} region(s)", bytes >> 20)
            }
            Event::Mtu { mtu } => write!(f, "MTU {mtu}"),
            Event::Ring { ring, running: true, enabled, entries } => {
                let enabled = if *enabled { "enabled" } else { "disabled" };
                write!(f, "ring {ring} runs, {entries} entries, {enabled}")
            }
            Event::Ring { ring, running: false, .. } => write!(f, "ring {ring} stopped"),
            Event::Broken { ring, why } => write!(f, "ring {ring} stopped: {why}"),
            Event::Link { up } => write!(f, "link {}", if *up { "up" } else { "down" }),
            Event::Refused { request, why, .. } => write!(f, "{request} refused: {why}"),
            Event::Note { text } | Event::Failure { text } => f.write_str(text),
            Event::Missed { events } => write!(f, "{events} events missed"),
        }
    }
}

/// An event, of which port, and when.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Moment {
    /// Seconds since 1970.
    pub time: f64,
    /// The port's name.
    pub port: Arc<str>,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

impl Moment {
    pub(super) fn now(port: &Arc<str>, event: Event) -> Self {
        // A clock before 1970 is wrong enough to say so by a zero.
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // To the microsecond: what a reader can compare.
        let time = (time.as_secs_f64() * 1e6).round() / 1e6;
        Moment { time, port: Arc::clone(port), event }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_flat_object() {
        let event = Event::Ring { ring: 1, running: true, enabled: false, entries: 256 };
        let moment = Moment { time: 1.5, port: "vhost:a".into(), event };
        let json = serde_json::to_string(&moment).unwrap();
        let expected = concat!(
            r#"{"time":1.5,"port":"vhost:a","event":"ring","ring":1,"running":true,"#,
            r#""enabled":false,"entries":256}"#
        );
        assert_eq!(json, expected);
    }
}
