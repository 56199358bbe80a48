//! What was counted, for people and for programs: totals, rates, tables, JSON.
//!
//! Promises: reading disturbs no worker (relaxed loads only); every number is derived from
//! [`Snapshot`]s, so a table and the JSON of the same snapshot agree. RX is what we received
//! from a port (a guest's tx), TX what we sent to it. Ports are counted since they were opened or
//! cleared ([`PortCounters::clear`]); two snapshots are compared only where they count since the
//! same moment. Used by `bridge` and `run`; the writers are the owners of the queues and, for
//! [`WorkerStats`], the workers.

#![forbid(unsafe_code)]

mod table;
mod worker;

use crate::counters::{QueueCounters, Reason};
use crate::journal::Journal;
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

pub use worker::{WorkerStats, WorkerTotals};

/// The counters of one port, by direction, a queue each.
///
/// A counter has one writer, which is not the one who clears it: what it had counted by then is
/// remembered here and subtracted.
#[derive(Debug, Clone)]
pub struct PortCounters {
    slot: usize,
    /// The port's journal, which knows its name.
    pub journal: Arc<Journal>,
    /// What is received from it.
    pub rx: Vec<Arc<QueueCounters>>,
    /// What is sent to it.
    pub tx: Vec<Arc<QueueCounters>>,
    /// When they were cleared, and what they were then.
    since: Instant,
    before: Counted,
}

/// What the counters of a port say.
#[derive(Debug, Clone, Default)]
struct Counted {
    rx: Totals,
    tx: Totals,
    refused: BTreeMap<&'static str, u64>,
}

impl PortCounters {
    /// New ones for port `slot`, with as many queue pairs.
    pub fn new(slot: usize, journal: &Arc<Journal>, queues: u16) -> Self {
        let counters = || (0..queues).map(|_| Arc::default()).collect();
        PortCounters {
            slot,
            journal: Arc::clone(journal),
            rx: counters(),
            tx: counters(),
            since: Instant::now(),
            before: Counted::default(),
        }
    }

    /// Count anew from now on.
    pub fn clear(&mut self) {
        self.before = self.count();
        self.since = Instant::now();
    }

    /// What was counted since the start, or since they were cleared.
    pub fn totals(&self) -> PortTotals {
        let Counted { rx, tx, mut refused } = self.count();
        for (reason, n) in &mut refused {
            *n -= self.before.refused.get(reason).copied().unwrap_or(0).min(*n);
        }
        refused.retain(|_, n| *n > 0);
        PortTotals {
            slot: self.slot,
            since: self.since,
            name: self.journal.port().into(),
            rx: rx.minus(&self.before.rx),
            tx: tx.minus(&self.before.tx),
            refused,
        }
    }

    fn count(&self) -> Counted {
        let (rx, tx) = (Totals::read(&self.rx), Totals::read(&self.tx));
        Counted { rx, tx, refused: self.journal.status().refused }
    }
}

/// Packets lost, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drops([u64; Reason::ALL.len()]);

impl Drops {
    /// Lost for `reason`.
    pub fn of(&self, reason: Reason) -> u64 {
        self.0[reason as usize]
    }

    /// Lost for any reason.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The reasons that occurred, and how often.
    pub fn by_reason(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL.into_iter().map(|reason| (reason, self.of(reason))).filter(|(_, n)| *n > 0)
    }

    fn plus(mut self, other: &Drops) -> Drops {
        for (sum, n) in self.0.iter_mut().zip(other.0) {
            *sum += n;
        }
        self
    }

    fn minus(mut self, other: &Drops) -> Drops {
        for (rest, n) in self.0.iter_mut().zip(other.0) {
            *rest = rest.saturating_sub(n);
        }
        self
    }
}

/// As an object of the reasons that occurred.
impl Serialize for Drops {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (reason, n) in self.by_reason() {
            map.serialize_entry(reason.name(), &n)?;
        }
        map.end()
    }
}

/// One direction of a port, all queues together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Packets moved.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets and chains lost.
    pub drops: Drops,
}

impl Totals {
    fn read(queues: &[Arc<QueueCounters>]) -> Self {
        let mut totals = Totals::default();
        for queue in queues {
            totals.packets += queue.packets.get();
            totals.bytes += queue.bytes.get();
            totals.drops = totals.drops.plus(&Drops(Reason::ALL.map(|r| queue.dropped(r))));
        }
        totals
    }

    fn minus(&self, other: &Totals) -> Self {
        Totals {
            packets: self.packets.saturating_sub(other.packets),
            bytes: self.bytes.saturating_sub(other.bytes),
            drops: self.drops.minus(&other.drops),
        }
    }
}

/// What one port has moved and lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortTotals {
    /// Its number.
    pub slot: usize,
    /// Since when this was counted: since the port was opened or cleared.
    pub since: Instant,
    /// The port's name.
    pub name: String,
    /// Received from it.
    pub rx: Totals,
    /// Sent to it.
    pub tx: Totals,
    /// What its frontend was refused, and what its guest broke, by reason.
    pub refused: BTreeMap<&'static str, u64>,
}

/// All counters at one moment (each of them read a moment after the other).
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// When.
    pub at: Instant,
    /// The ports there are, by number.
    pub ports: Vec<PortTotals>,
    /// The workers.
    pub workers: Vec<WorkerTotals>,
}

impl Snapshot {
    /// Read everything now.
    pub fn take<'a>(
        ports: impl IntoIterator<Item = &'a PortCounters>,
        workers: impl IntoIterator<Item = &'a Arc<WorkerStats>>,
    ) -> Self {
        Snapshot {
            at: Instant::now(),
            ports: ports.into_iter().map(PortCounters::totals).collect(),
            workers: workers.into_iter().map(|worker| worker.read()).collect(),
        }
    }

    /// The tables for people, about 90 columns wide: totals of every port, cycles of every
    /// worker, and rates since `earlier`, or since the port was opened or cleared if that was
    /// later.
    pub fn table(&self, earlier: &Snapshot) -> String {
        table::render(self, earlier)
    }

    /// The object for programs, as text without a line break:
    /// `{"ports":[{"name","rx_packets","tx_packets","rx_bytes","tx_bytes","drops":{reason:n},
    /// "refused":{reason:n}}],"workers":[{"cpu","packets","cycles_per_packet","cycles_per_packet_p10","best_pps"}]}`.
    ///
    /// `drops` has both directions together, `refused` what was wrong with messages and rings,
    /// and both only reasons that occurred; `cpu` is null for
    /// a worker that is not pinned; the cycles are null without a packet.
    ///
    /// # Errors
    /// None in practice: there is nothing in it that JSON cannot say.
    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }
}

impl Serialize for PortTotals {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        PortJson::new(self).serialize(serializer)
    }
}

#[derive(serde::Serialize)]
struct PortJson<'a> {
    name: &'a str,
    rx_packets: u64,
    tx_packets: u64,
    rx_bytes: u64,
    tx_bytes: u64,
    drops: Drops,
    refused: &'a BTreeMap<&'static str, u64>,
}

impl<'a> PortJson<'a> {
    fn new(port: &'a PortTotals) -> Self {
        PortJson {
            name: &port.name,
            rx_packets: port.rx.packets,
            tx_packets: port.tx.packets,
            rx_bytes: port.rx.bytes,
            tx_bytes: port.tx.bytes,
            drops: port.rx.drops.plus(&port.tx.drops),
            refused: &port.refused,
        }
    }
}

#[derive(serde::Serialize)]
struct WorkerJson {
    cpu: Option<usize>,
    packets: u64,
    cycles_per_packet: Option<f64>,
    cycles_per_packet_p10: Option<u64>,
    best_pps: u64,
}

impl WorkerJson {
    fn new(worker: &WorkerTotals) -> Self {
        WorkerJson {
            cpu: worker.cpu,
            packets: worker.packets,
            // A tenth of a cycle is more than the measurement is worth.
            cycles_per_packet: worker.cycles_per_packet().map(|c| (c * 10.0).round() / 10.0),
            cycles_per_packet_p10: worker.cycles_per_packet_p10,
            best_pps: worker.best_pps,
        }
    }
}

impl Serialize for Snapshot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        let workers: Vec<WorkerJson> = self.workers.iter().map(WorkerJson::new).collect();
        map.serialize_entry("ports", &self.ports)?;
        map.serialize_entry("workers", &workers)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Event;

    /// A port with two queues, and a worker that has moved packets.
    pub(super) fn sources() -> (Vec<PortCounters>, Vec<Arc<WorkerStats>>) {
        let queue = |packets, bytes, drops: &[(Reason, u64)]| {
            let queue = QueueCounters::default();
            queue.packets.add(packets);
            queue.bytes.add(bytes);
            for (reason, n) in drops {
                queue.lost(*reason, *n);
            }
            Arc::new(queue)
        };
        let journal = |name| Arc::new(Journal::new(name, &Arc::default()));
        let port = PortCounters {
            rx: vec![
                queue(100, 6400, &[(Reason::Runt, 3)]),
                queue(20, 1280, &[(Reason::Runt, 1), (Reason::BadNext, 2)]),
            ],
            tx: vec![queue(7, 700, &[(Reason::NoBuffers, 9), (Reason::Runt, 5)])],
            ..PortCounters::new(0, &journal("vhost:/tmp/vm0.sock"), 0)
        };
        port.journal.tell(Event::refused("SET_VRING_NUM", "ring_size", "no".into()));
        let tx = vec![queue(1, 60, &[])];
        let null = PortCounters { tx, ..PortCounters::new(1, &journal("null"), 0) };
        let worker = WorkerStats::new(Some(2), 1e9);
        worker.record(32, 32 * 40);
        worker.record(32, 32 * 51);
        (vec![port, null], vec![Arc::new(worker), Arc::new(WorkerStats::new(None, 1e9))])
    }

    #[test]
    fn queues_are_summed_by_direction() {
        let (ports, workers) = sources();
        let snapshot = Snapshot::take(&ports, &workers);
        let port = &snapshot.ports[0];
        assert_eq!((port.rx.packets, port.rx.bytes), (120, 7680));
        assert_eq!((port.tx.packets, port.tx.bytes), (7, 700));
        assert_eq!((port.rx.drops.of(Reason::Runt), port.rx.drops.total()), (4, 6));
        assert_eq!(port.tx.drops.total(), 14);
    }

    #[test]
    fn a_cleared_port_counts_from_zero_and_a_reader_of_before_knows() {
        let (mut ports, workers) = sources();
        let before = Snapshot::take(&ports, &workers);
        ports[0].clear();
        ports[0].rx[0].packets.add(5);
        ports[0].rx[1].lost(Reason::BadNext, 1);
        ports[0].journal.tell(Event::refused("SET_VRING_NUM", "no_ring", "no".into()));
        let now = Snapshot::take(&ports, &workers);
        let port = &now.ports[0];
        assert_eq!((port.rx.packets, port.rx.bytes, port.tx), (5, 0, Totals::default()));
        assert_eq!((port.rx.drops.total(), port.rx.drops.of(Reason::BadNext)), (1, 1));
        assert_eq!(port.refused.iter().collect::<Vec<_>>(), [(&"no_ring", &1)]);
        assert!(port.since > before.ports[0].since);
        assert_eq!(now.ports[1], before.ports[1]);
    }

    #[test]
    fn the_json_is_as_specified() {
        let (ports, workers) = sources();
        let json = Snapshot::take(&ports, &workers).json().unwrap();
        let expected = concat!(
            r#"{"ports":[{"name":"vhost:/tmp/vm0.sock","rx_packets":120,"tx_packets":7,"#,
            r#""rx_bytes":7680,"tx_bytes":700,"#,
            r#""drops":{"no_buffers":9,"runt":9,"bad_next":2},"refused":{"ring_size":1}},"#,
            r#"{"name":"null","rx_packets":0,"tx_packets":1,"rx_bytes":0,"tx_bytes":60,"#,
            r#""drops":{},"refused":{}}],"#,
            r#""workers":[{"cpu":2,"packets":64,"cycles_per_packet":45.5,"#,
            r#""cycles_per_packet_p10":40,"best_pps":0},"#,
            r#"{"cpu":null,"packets":0,"cycles_per_packet":null,"#,
            r#""cycles_per_packet_p10":null,"best_pps":0}]}"#,
        );
        assert_eq!(json, expected);
    }
}
