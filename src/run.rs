//! From a checked configuration to a running bridge, and to its end.
//!
//! Promises: [`Bridge::start`] opens every port or reports why not; [`Bridge::stop`] ends
//! sessions, workers and threads within a bounded time and unlinks the sockets. [`run`] is the
//! command: tables while it runs, totals at the end. Every transmit queue has one worker, the
//! one whose receive queue feeds it.

#![forbid(unsafe_code)]

use crate::config::{ForwardMode, PortKind, PortSpec, RunConfig};
use crate::control::{OpenError, PortRings, VhostPort};
use crate::counters::QueueCounters;
use crate::ctl;
use crate::forward::{self, PortId, paired};
use crate::journal::{Followers, Journal};
use crate::packet::BURST;
use crate::port::generator::Generator;
use crate::port::pcap::{self, PcapOpenError};
use crate::port::{RxQueue, TxQueue, vhost};
use crate::stats::{PortCounters, Snapshot, WorkerStats};
use crate::sys::{self, Termination, cycles_per_second};
use crate::worker::{Command, Inbox, Receiver, Worker};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Why a bridge could not be started.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A vhost-user socket.
    #[error("cannot open port {name}")]
    Vhost {
        /// The port.
        name: String,
        /// What is wrong.
        #[source]
        source: OpenError,
    },
    /// A capture file.
    #[error(transparent)]
    Pcap(#[from] PcapOpenError),
    /// The control socket.
    #[error(transparent)]
    Control(#[from] ctl::ServerError),
    /// Out of threads, fds or the like.
    #[error("cannot {0}")]
    System(&'static str, #[source] io::Error),
}

/// Ports and workers that run.
pub struct Bridge {
    followers: Arc<Followers>,
    counters: Vec<PortCounters>,
    vhosts: Vec<VhostPort>,
    workers: Vec<Running>,
}

struct Running {
    inbox: Arc<Inbox>,
    stats: Arc<WorkerStats>,
    thread: JoinHandle<()>,
}

/// Where everything goes: which worker has which queue.
struct Wiring {
    forward: ForwardMode,
    ports: usize,
    workers: usize,
}

impl Wiring {
    /// The port that packets from `port` are sent to, if the mode sends them anywhere.
    fn output(&self, port: PortId) -> Option<PortId> {
        match self.forward {
            ForwardMode::Io | ForwardMode::Mac | ForwardMode::MacSwap => {
                Some(paired(port, self.ports))
            }
            ForwardMode::IcmpEcho => Some(port),
            ForwardMode::RxOnly | ForwardMode::TxOnly => None,
        }
    }

    /// The worker that receives from `port`.
    fn receiver(&self, port: PortId) -> usize {
        port % self.workers
    }

    /// The worker that sends to `port`: the one that receives what is sent there. Pairing is
    /// mutual, so that is the port's own output.
    fn sender(&self, port: PortId) -> usize {
        self.receiver(self.output(port).unwrap_or(port))
    }
}

impl Bridge {
    /// Open the ports and start the workers.
    ///
    /// # Errors
    /// What could not be opened. What was opened before is closed again.
    pub fn start(config: &RunConfig) -> Result<Self, RunError> {
        let wiring = Wiring {
            forward: config.forward,
            ports: config.ports.len(),
            workers: config.workers.len(),
        };
        let hz = cycles_per_second();
        let mut workers = Vec::new();
        for &cpu in &config.workers {
            let inbox = Inbox::new().map_err(|e| RunError::System("make a worker's inbox", e))?;
            workers.push(Worker {
                receivers: Vec::new(),
                outputs: config.ports.iter().map(|_| None).collect(),
                forwarder: forward::new(config.forward, config.ports.len()),
                burst: config.burst.clamp(1, BURST),
                poll: config.poll,
                cpu,
                inbox: Arc::new(inbox),
                stats: Arc::new(WorkerStats::new(cpu, hz)),
            });
        }
        let mut bridge = Bridge {
            followers: Arc::default(),
            counters: Vec::new(),
            vhosts: Vec::new(),
            workers: Vec::new(),
        };
        for (port, spec) in config.ports.iter().enumerate() {
            if let Err(error) = bridge.open(port, spec, &wiring, &mut workers) {
                // A frontend that is there already shall not wait for workers that never start.
                for worker in &workers {
                    worker.inbox.close();
                }
                return Err(error);
            }
            if config.forward == ForwardMode::TxOnly {
                workers[wiring.sender(port)].receivers.push(generator(config, port));
            }
        }
        for worker in workers {
            bridge.workers.push(spawn(worker)?);
        }
        Ok(bridge)
    }

    fn open(
        &mut self,
        port: PortId,
        spec: &PortSpec,
        wiring: &Wiring,
        workers: &mut [Worker],
    ) -> Result<(), RunError> {
        let (receiver, sender) = (wiring.receiver(port), wiring.sender(port));
        let queues = if let PortKind::Vhost(v) = &spec.kind { v.queues } else { 1 };
        let counters = PortCounters {
            journal: Arc::new(Journal::new(&spec.name, &self.followers)),
            rx: (0..queues).map(|_| Arc::default()).collect(),
            tx: (0..queues).map(|_| Arc::default()).collect(),
        };
        let mut receive = |pair, queue, paced_by| {
            let counters: &Arc<QueueCounters> = &counters.rx[pair];
            let counters = Arc::clone(counters);
            workers[receiver].receivers.push(Receiver { port, pair, queue, counters, paced_by });
        };
        let output = match &spec.kind {
            PortKind::Vhost(_) => {
                for (pair, counters) in counters.rx.iter().enumerate() {
                    receive(pair, RxQueue::Vhost(vhost::RxQueue::new(Arc::clone(counters))), None);
                }
                TxQueue::Vhost(vhost::TxQueue::new(&counters.tx))
            }
            PortKind::Pcap(pcap) => {
                let reader = pcap::Reader::open(&pcap.input, pcap.repeat)?;
                for (reason, n) in reader.refused() {
                    counters.rx[0].lost(reason, n);
                }
                let queue = RxQueue::Pcap(reader, Arc::clone(&counters.rx[0]));
                receive(0, queue, wiring.output(port));
                let writer = pcap::Writer::create(pcap.output.as_deref())?;
                TxQueue::Pcap(writer, Arc::clone(&counters.tx[0]))
            }
            PortKind::Null => TxQueue::Null(Arc::clone(&counters.tx[0])),
        };
        workers[sender].outputs[port] = Some(output);
        if let PortKind::Vhost(vhost) = &spec.kind {
            let [to_guest, from_guest] =
                [sender, receiver].map(|worker| Arc::clone(&workers[worker].inbox));
            let vhost = VhostPort::open(
                &counters.journal,
                vhost,
                PortRings::new(port, to_guest, from_guest),
            )
            .map_err(|source| RunError::Vhost { name: spec.name.clone(), source })?;
            self.vhosts.push(vhost);
        }
        self.counters.push(counters);
        Ok(())
    }

    /// All counters now.
    pub fn snapshot(&self) -> Snapshot {
        let workers: Vec<_> = self.workers.iter().map(|w| Arc::clone(&w.stats)).collect();
        Snapshot::take(&self.counters, &workers)
    }

    /// End everything; the final counters.
    pub fn stop(mut self) -> Snapshot {
        // Sessions first, while there are workers to give their rings back.
        self.vhosts.drain(..).for_each(VhostPort::stop);
        let stats: Vec<_> = self.workers.iter().map(|w| Arc::clone(&w.stats)).collect();
        for worker in self.workers.drain(..) {
            worker.inbox.post(Command::Quit);
            if worker.thread.join().is_err() {
                tracing::error!("a worker panicked");
            }
        }
        Snapshot::take(&self.counters, &stats)
    }
}

/// The generator that feeds `port`. It is numbered behind the ports, and its packets are
/// counted where they arrive, not where they are made.
fn generator(config: &RunConfig, port: PortId) -> Receiver {
    Receiver {
        port: config.ports.len() + port,
        pair: 0,
        queue: RxQueue::Generator(Generator::new(config.size)),
        counters: Arc::default(),
        paced_by: Some(port),
    }
}

fn spawn(worker: Worker) -> Result<Running, RunError> {
    let (inbox, stats) = (Arc::clone(&worker.inbox), Arc::clone(&worker.stats));
    let thread = worker.start().map_err(|e| RunError::System("start a worker", e))?;
    Ok(Running { inbox, stats, thread })
}

/// Run until the duration is over or a signal comes; print tables meanwhile, totals at the end.
///
/// # Errors
/// Why the bridge could not be started.
pub fn run(config: &RunConfig) -> Result<(), RunError> {
    // Before any thread is made, so that all of them leave the signals to this one.
    let signals = Termination::catch().map_err(|e| RunError::System("block signals", e))?;
    if let Err(error) = sys::raise_file_limit() {
        tracing::warn!("cannot raise the limit of open files, so many guests may not fit: {error}");
    }
    let bridge = Arc::new(Bridge::start(config)?);
    let control = ctl::Server::start(config.control.as_deref(), &bridge)?;
    if let Some(path) = control.as_ref().and_then(ctl::Server::path) {
        tracing::info!("control socket: {}", path.display());
    }
    let first = bridge.snapshot();
    let end = config.duration.map(|duration| first.at + duration);
    let mut last = first.clone();
    loop {
        let tick = config.stats_interval.filter(|_| !config.json).map(|every| last.at + every);
        let next = [end, tick].into_iter().flatten().min();
        let timeout =
            next.map_or(Duration::from_hours(1), |at| at.saturating_duration_since(Instant::now()));
        if signals.wait(timeout) || end.is_some_and(|end| Instant::now() >= end) {
            break;
        }
        if tick.is_some_and(|tick| Instant::now() >= tick) {
            let now = bridge.snapshot();
            sys::print(&now.table(&last));
            last = now;
        }
    }
    // First, so that nobody changes what is ending.
    drop(control);
    let totals = bridge.stop();
    if config.json {
        let json = totals.json().map_err(|e| RunError::System("print JSON", e.into()))?;
        sys::print(&format!("{json}\n"));
    } else {
        sys::print(&format!("Totals:\n{}", totals.table(&first)));
    }
    Ok(())
}
