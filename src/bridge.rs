//! Ports and workers that run; ports come and go meanwhile.
//!
//! Promises: [`Bridge::start`] opens every port or reports why not; [`Bridge::add_port`] and
//! [`Bridge::remove_port`] disturb no other port: no queue moves to another worker, no session
//! ends but that port's, and workers, which never take the bridge's lock, are told by commands
//! between two bursts. Every packet that is not delivered meanwhile is counted with one reason:
//! packets to a port that is not there as `not_connected`, where they were received.
//! [`Bridge::stop`] ends sessions, workers and threads within a bounded time and unlinks the
//! sockets. Used by `run`, `sweep` and `ctl`, from any thread; what takes long (a large file, a
//! frontend's rings) is done without the lock, so that it holds up no request for other ports.

#![forbid(unsafe_code)]

mod info;
mod queues;
mod slots;
mod wiring;

pub use info::PortInfo;

use crate::config::files::{self, FileError};
use crate::config::{BridgeKeys, ForwardMode, PortKind, PortSpec, RunConfig};
use crate::control::{self, NicError, NicPort, PortQueues, PortRings, VhostPort};
use crate::forward::bridge::{Learned, Ports, Shared};
use crate::forward::{self, MAX_PORTS, Pairs, PortId};
use crate::journal::{Event, Followers, Journal, Moment};
use crate::packet::BURST;
use crate::port::pcap::PcapOpenError;
use crate::stats::{PortCounters, PortTotals, Snapshot, WorkerStats};
use crate::sys::cycles_per_second;
use crate::worker::{Command, Inbox, Worker};
use queues::Queues;
use slots::{Phase, Slot, Slots, Threads};
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use wiring::Wiring;

/// How long a worker may take to obey. It looks into its inbox once a loop, which is
/// microseconds.
const OBEYED: Duration = Duration::from_secs(5);

/// Why a bridge could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A port.
    #[error(transparent)]
    Port(#[from] AddError),
    /// Out of threads, fds or the like.
    #[error("cannot {0}")]
    System(&'static str, #[source] io::Error),
}

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenPortError {
    /// A vhost-user socket.
    #[error("cannot open port {name}")]
    Vhost {
        /// The port.
        name: String,
        /// What is wrong.
        #[source]
        source: control::OpenError,
    },
    /// An interface.
    #[error("cannot open port {name}")]
    Nic {
        /// The port.
        name: String,
        /// What is wrong.
        #[source]
        source: NicError,
    },
    /// A capture file.
    #[error(transparent)]
    Pcap(#[from] PcapOpenError),
}

/// Why a port could not be added.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// One name, one port.
    #[error("there is a port {0} already")]
    Name(String),
    /// No free slot.
    #[error("there are {MAX_PORTS} ports, and no more fit; delete one first")]
    Full,
    /// One of its files.
    #[error(transparent)]
    File(#[from] FileError),
    /// A pipe, whose writer would be waited for.
    #[error("{} is not a file, and only files are read while the bridge runs", .0.display())]
    NotFile(PathBuf),
    /// The port itself.
    #[error(transparent)]
    Open(#[from] OpenPortError),
    /// Too late.
    #[error("the bridge is ending")]
    Ending,
}

/// Why a port could not be removed, or found.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// Nobody has this name.
    #[error("there is no port {0}; see ctl ports")]
    NoPort(String),
    /// Several have.
    #[error(
        "several ports are called {name}; give the number: {}",
        .ports.iter().map(PortId::to_string).collect::<Vec<_>>().join(", ")
    )]
    Several {
        /// The name.
        name: String,
        /// Their numbers.
        ports: Vec<PortId>,
    },
    /// Somebody else adds or removes it right now.
    #[error("port {0} is being added or deleted right now")]
    Busy(String),
    /// Its thread hangs.
    #[error("port {0} does not end; it moves nothing, and its name and number stay taken")]
    Stuck(String),
}

/// Ports and workers that run.
#[derive(Debug)]
pub struct Bridge {
    wiring: Wiring,
    /// What a learning bridge knows.
    learned: Arc<Shared>,
    /// Bytes of generated frames.
    size: usize,
    followers: Arc<Followers>,
    workers: Vec<Running>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    slots: Slots,
    /// The ports that are open, as a learning bridge sees them.
    ports: Ports,
    pairs: Pairs,
    /// The workers' threads, until they are told to quit.
    threads: Vec<JoinHandle<()>>,
    ending: bool,
}

struct Running {
    inbox: Arc<Inbox>,
    stats: Arc<WorkerStats>,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        self.stats.fmt(f)
    }
}

impl Bridge {
    /// Start the workers and open the ports.
    ///
    /// # Errors
    /// What could not be opened. What was opened before is closed again.
    pub fn start(config: &RunConfig) -> Result<Self, StartError> {
        let wiring = Wiring::new(config);
        let state = State {
            slots: Slots::default(),
            ports: Ports::default(),
            pairs: wiring.pairs(),
            threads: Vec::new(),
            ending: false,
        };
        let age = u32::try_from(config.aging.as_secs()).unwrap_or(u32::MAX);
        let mut bridge = Bridge {
            wiring,
            learned: Arc::new(Shared::new(age)),
            size: config.size,
            followers: Arc::default(),
            workers: Vec::new(),
            state: Mutex::new(state),
        };
        let started = bridge.start_all(config);
        if started.is_err() {
            bridge.stop();
        }
        started.map(|()| bridge)
    }

    fn start_all(&mut self, config: &RunConfig) -> Result<(), StartError> {
        let hz = cycles_per_second();
        for &cpu in &config.workers {
            let inbox = Inbox::new().map_err(|e| StartError::System("make a worker's inbox", e))?;
            let worker = Worker {
                receivers: Vec::new(),
                outputs: Vec::new(),
                forwarder: forward::new(config.forward, self.wiring.pairs(), &self.learned),
                retagged: None,
                burst: config.burst.clamp(1, BURST),
                poll: config.poll,
                cpu,
                inbox: Arc::new(inbox),
                stats: Arc::new(WorkerStats::new(cpu, hz)),
            };
            let running =
                Running { inbox: Arc::clone(&worker.inbox), stats: Arc::clone(&worker.stats) };
            let thread = worker.start().map_err(|e| StartError::System("start a worker", e))?;
            self.workers.push(running);
            self.lock().threads.push(thread);
        }
        for spec in &config.ports {
            let (port, counters) = self.reserve(spec, self.lock())?;
            self.open(port, spec, &counters)?;
        }
        Ok(())
    }

    /// Add a port. Its number is the lowest free one.
    ///
    /// # Errors
    /// Why not; everything is as it was then.
    pub fn add_port(&self, spec: &PortSpec) -> Result<PortId, AddError> {
        files::check_files(spec)?;
        if let PortKind::Pcap(pcap) = &spec.kind
            && !pcap.input.is_file()
        {
            return Err(AddError::NotFile(pcap.input.clone()));
        }
        let state = self.lock();
        state.slots.check(spec)?;
        let (port, counters) = self.reserve(spec, state)?;
        self.open(port, spec, &counters)?;
        counters.journal.tell(Event::Added { slot: port });
        Ok(port)
    }

    /// Take a slot.
    fn reserve(
        &self,
        spec: &PortSpec,
        mut state: MutexGuard<State>,
    ) -> Result<(PortId, PortCounters), AddError> {
        if state.ending {
            return Err(AddError::Ending);
        }
        let port = state.slots.free()?;
        let journal = Arc::new(Journal::new(&spec.name, &self.followers));
        let counters = PortCounters::new(port, &journal, spec.kind.queues());
        let slot = Slot { spec: spec.clone(), counters: counters.clone(), phase: Phase::Opening };
        state.slots.put(port, slot);
        Ok((port, counters))
    }

    /// Open what has a slot, or free the slot.
    fn open(&self, port: PortId, spec: &PortSpec, counters: &PortCounters) -> Result<(), AddError> {
        let opened = self.connect(port, spec, counters);
        let mut state = self.lock();
        let error = match opened {
            Ok(threads) if !state.ending => {
                if let Some(slot) = state.slots.get_mut(port) {
                    slot.phase = Phase::Open(threads);
                }
                self.learned.add(port, &spec.bridge);
                self.set_port(&mut state, port, Some(&spec.bridge));
                // The first one is no longer alone, and will not be again.
                if port == 1 && state.pairs != Pairs::NEIGHBOURS {
                    state.pairs = Pairs::NEIGHBOURS;
                    self.workers.iter().for_each(|w| w.inbox.post(Command::Pair(state.pairs)));
                }
                return Ok(());
            }
            Ok(threads) => {
                drop(state);
                drop(threads);
                AddError::Ending
            }
            Err(error) => {
                drop(state);
                error.into()
            }
        };
        self.disconnect(port);
        self.lock().slots.take(port);
        Err(error)
    }

    /// A learning bridge has a port more, or less, of which it forgets what it has learned.
    fn set_port(&self, state: &mut State, port: PortId, keys: Option<&BridgeKeys>) {
        if self.wiring.forward != ForwardMode::Bridge {
            return;
        }
        state.ports.set(port, keys.cloned());
        let ports = Arc::new(state.ports.clone());
        for worker in &self.workers {
            worker.inbox.post(Command::SetPorts(Arc::clone(&ports)));
        }
    }

    /// The addresses that a learning bridge knows, and for how many seconds each was silent.
    pub fn macs(&self) -> Vec<(Learned, u32)> {
        self.learned.list()
    }

    /// Make the port's queues, give them to the workers, and let frontends come.
    fn connect(
        &self,
        port: PortId,
        spec: &PortSpec,
        counters: &PortCounters,
    ) -> Result<Threads, OpenPortError> {
        let output = self.wiring.output(port, self.lock().pairs);
        let mut queues = Queues::open(port, spec, counters, output)?;
        let (receiver, sender) = self.inboxes(port);
        if self.wiring.forward == ForwardMode::TxOnly {
            // Both belong to one worker then.
            queues.receivers.push(queues::generator(port, self.size));
        }
        sender.post(Command::AddOutput { port, output: Box::new(queues.output) });
        receiver.post(Command::AddReceivers(queues.receivers));
        let name = || spec.name.clone();
        if let PortKind::Vhost(vhost) = &spec.kind {
            let rings = PortRings::new(port, Arc::clone(sender), Arc::clone(receiver));
            let vhost = VhostPort::open(&counters.journal, vhost, rings);
            let opened = vhost.map(Threads::Vhost);
            return opened.map_err(|source| OpenPortError::Vhost { name: name(), source });
        }
        let queues = PortQueues::new(port, receiver, sender);
        let nic = NicPort::open(&counters.journal, &spec.kind, queues);
        let nic = nic.map_err(|source| OpenPortError::Nic { name: name(), source })?;
        Ok(nic.map_or(Threads::None, Threads::Nic))
    }

    /// Take the port's queues from the workers. What is received goes first, so that nothing
    /// has nowhere to go that had somewhere.
    fn disconnect(&self, port: PortId) {
        let (receiver, sender) = self.inboxes(port);
        // A worker that does not answer has ended, or hangs and will obey some day: as good.
        let _ = receiver.ask(OBEYED, |reply| Command::RemoveReceivers { port, reply });
        let output = sender.ask(OBEYED, |reply| Command::RemoveOutput { port, reply });
        if let Ok(Some(mut output)) = output {
            output.flush();
        }
    }

    /// Of the workers that receive from `port` and send to it.
    fn inboxes(&self, port: PortId) -> (&Arc<Inbox>, &Arc<Inbox>) {
        let inbox = |worker: usize| &self.workers[worker].inbox;
        (inbox(self.wiring.receiver(port)), inbox(self.wiring.sender(port)))
    }

    /// Remove the port called `name`, or of that number: its frontend is disconnected, its
    /// socket file removed. Returns what it has moved and lost.
    ///
    /// # Errors
    /// There is no such port, or somebody is at it.
    pub fn remove_port(&self, name: &str) -> Result<PortTotals, RemoveError> {
        let (port, threads) = {
            let mut state = self.lock();
            let port = state.slots.find(name)?;
            let phase = state.slots.get_mut(port).map(|slot| &mut slot.phase);
            match phase {
                Some(Phase::Open(threads)) => {
                    let threads = std::mem::take(threads);
                    if let Some(slot) = state.slots.get_mut(port) {
                        slot.phase = Phase::Closing;
                    }
                    (port, threads)
                }
                _ => return Err(RemoveError::Busy(name.into())),
            }
        };
        self.set_port(&mut self.lock(), port, None);
        // While its workers can give the rings back.
        let ended = threads.stop();
        self.disconnect(port);
        if !ended {
            return Err(RemoveError::Stuck(name.into()));
        }
        // What came meanwhile was learned again.
        self.learned.table.forget(port);
        let slot = self.lock().slots.take(port);
        let slot = slot.ok_or_else(|| RemoveError::NoPort(name.into()))?;
        slot.counters.journal.tell(Event::Deleted { slot: port });
        Ok(slot.counters.totals())
    }

    /// All ports as they are now.
    pub fn ports(&self) -> Vec<PortInfo> {
        let state = self.lock();
        let info = |(port, slot)| {
            let partner = self.wiring.output(port, state.pairs);
            PortInfo::new(port, slot, partner.filter(|partner| state.slots.is_open(*partner)))
        };
        state.slots.iter().map(info).collect()
    }

    /// The port called `name`, or of that number.
    ///
    /// # Errors
    /// There is none.
    pub fn port(&self, name: &str) -> Result<PortInfo, RemoveError> {
        let port = self.lock().slots.find(name)?;
        let mut ports = self.ports().into_iter();
        ports.find(|info| info.slot == port).ok_or_else(|| RemoveError::NoPort(name.into()))
    }

    /// All events from now on.
    pub fn follow(&self) -> Receiver<Moment> {
        self.followers.follow()
    }

    /// All counters now.
    pub fn snapshot(&self) -> Snapshot {
        let state = self.lock();
        let ports = state.slots.iter().map(|(_, slot)| &slot.counters);
        Snapshot::take(ports, self.workers.iter().map(|worker| &worker.stats))
    }

    /// Count anew from now on.
    pub fn clear(&self) {
        self.lock().slots.iter_mut().for_each(|slot| slot.counters.clear());
        for worker in &self.workers {
            // One that does not answer in time does it later.
            let _ = worker.inbox.ask(OBEYED, |done| Command::ClearStats { done });
        }
    }

    /// End everything; the final counters. Ports that come and go at this moment are ended by
    /// who is at them.
    pub fn stop(&self) -> Snapshot {
        let (ports, workers) = {
            let mut state = self.lock();
            state.ending = true;
            let ports: Vec<_> = state
                .slots
                .iter_mut()
                .filter_map(|slot| match &mut slot.phase {
                    Phase::Open(threads) => Some(std::mem::take(threads)),
                    Phase::Opening | Phase::Closing => None,
                })
                .collect();
            (ports, std::mem::take(&mut state.threads))
        };
        // Sessions first, while there are workers to give their rings back.
        drop(ports);
        self.workers.iter().for_each(|worker| worker.inbox.post(Command::Quit));
        for thread in workers {
            if thread.join().is_err() {
                tracing::error!("a worker panicked");
            }
        }
        self.snapshot()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that panics runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
