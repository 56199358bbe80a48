//! A connected guest: its ports, their rings and buffers, from connection to stop.
//!
//! Promises: rings are started full of buffers and with well-defined indices; between two
//! measurements no ring is touched by the backend's mistake or ours: rings that a backend left
//! packets in are stopped, cleared and started again. The loops that move packets are in
//! `traffic`.

use super::driver::{Geometry, Pool, Queue, QueueFeatures, QueuePlan, RxRing, TxRing};
use super::idle::Idle;
use super::meter::{Meter, Tick};
use super::options::GuestOptions;
use super::ram::{Plan, Ram};
use super::session::{self, Listener, Session, Wanted};
use super::{GuestError, RingError};
use crate::arch;
use crate::packet::MAX_PACKET;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest silence at the end of a run, when all that was sent should be taken and all that is
/// on its way arrive.
pub(super) const DRAIN: Duration = Duration::from_millis(500);

/// Where a guest's backends are, and what kind of guest it is.
#[derive(Debug, Clone)]
pub struct Link {
    /// One socket, or two.
    pub sockets: Vec<PathBuf>,
    /// Listen on them instead of connecting to them.
    pub server: bool,
    /// What kind.
    pub options: GuestOptions,
    /// How long to try to connect, or to wait for a backend to.
    pub timeout: Duration,
}

impl Link {
    /// Connect to `sockets` with default options.
    pub fn to(sockets: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        Link {
            sockets: sockets.into_iter().map(Into::into).collect(),
            server: false,
            options: GuestOptions::default(),
            timeout: Duration::from_secs(10),
        }
    }

    /// Connect, or listen and accept, and negotiate: a session a socket.
    pub(super) fn sessions(&self) -> Result<Vec<Session>, GuestError> {
        let deadline = Instant::now() + self.timeout;
        let wanted =
            Wanted { features: self.options.features(), queue_pairs: self.options.queue_pairs };
        if !self.server {
            let connect = |path: &PathBuf| {
                let stream = session::connect(path, deadline)?;
                Ok(Session::negotiate(stream, wanted)?)
            };
            return self.sockets.iter().map(connect).collect();
        }
        // All sockets exist before the first backend is waited for: they come in any order.
        let listeners: Result<Vec<_>, _> = self.sockets.iter().map(|p| Listener::new(p)).collect();
        let accept = |listener: Listener| {
            let mut session = Session::negotiate(listener.accept(deadline)?, wanted)?;
            session.keep(listener);
            Ok(session)
        };
        listeners?.into_iter().map(accept).collect()
    }
}

/// A receive and a transmit queue with their buffers.
pub(super) struct QueuePair {
    pub rx: RxRing,
    pub rx_pool: Pool,
    pub tx: TxRing,
    pub tx_pool: Pool,
}

/// One socket.
pub(super) struct Port {
    pub session: Session,
    pub ram: Arc<Ram>,
    pub pairs: Vec<QueuePair>,
}

/// A guest, connected.
pub struct Guest {
    pub(super) ports: Vec<Port>,
    pub(super) options: GuestOptions,
    idle: Idle,
    /// Runs so far: tells their packets apart.
    pub(super) epoch: u64,
}

impl Guest {
    /// Connect to one or two backends and start all rings.
    ///
    /// # Errors
    /// The options', the backend's or the system's fault.
    pub fn connect(link: &Link) -> Result<Self, GuestError> {
        let options = link.options.clone();
        options.check()?;
        let sockets = &link.sockets;
        if !(1..=2).contains(&sockets.len()) || sockets.len() == 2 && sockets[0] == sockets[1] {
            let what = "a guest has one socket, or two different ones";
            return Err(GuestError::Config(what.to_owned()));
        }
        let sessions = link.sessions()?;
        let memories = memories(&options, sessions.len())?;
        let mut ports = Vec::new();
        for (session, (ram, plans)) in sessions.into_iter().zip(memories) {
            let pair = |plan| make_pair(&options, &ram, plan);
            let pairs = plans.into_iter().map(pair).collect::<io::Result<_>>()?;
            ports.push(Port { session, ram, pairs });
        }
        let idle = Idle::new(
            ports
                .iter_mut()
                .flat_map(|p| p.pairs.iter_mut())
                .flat_map(|pair| [pair.rx.queue(), pair.tx.queue()]),
        )?;
        let mut guest = Guest { ports, options, idle, epoch: 0 };
        for port in &mut guest.ports {
            let Port { session, ram, pairs } = port;
            let calls = pairs.iter_mut().flat_map(|p| [p.rx.queue(), p.tx.queue()]);
            let calls: Vec<_> = calls.map(|queue| &*queue).collect();
            session.begin(calls.iter().map(|q| q.events().call), ram)?;
        }
        guest.clear();
        let first = guest.options.first_index;
        let bases =
            vec![vec![first; 2 * usize::from(guest.options.queue_pairs)]; guest.ports.len()];
        guest.start(&bases)?;
        Ok(guest)
    }

    /// The options it was made with.
    pub fn options(&self) -> &GuestOptions {
        &self.options
    }

    /// The negotiated features of each socket.
    pub fn features(&self) -> Vec<u64> {
        self.ports.iter().map(|p| p.session.features()).collect()
    }

    /// Kicks written so far, by all rings.
    pub fn kicks(&mut self) -> u64 {
        self.queues().map(|q| q.kicks()).sum()
    }

    /// Stop all rings: for each socket the bases the backend answers, in the order of ring
    /// numbers. [`Guest::start`] goes on from there.
    ///
    /// # Errors
    /// The backend's.
    pub fn stop(&mut self) -> Result<Vec<Vec<u16>>, GuestError> {
        let rings = 2 * usize::from(self.options.queue_pairs);
        let stop_port = |port: &mut Port| {
            (0..rings).map(|i| Ok(port.session.stop_ring(i)?)).collect::<Result<Vec<_>, _>>()
        };
        self.ports.iter_mut().map(stop_port).collect()
    }

    /// Start all rings as they lie in memory, at `bases`.
    ///
    /// # Errors
    /// The backend's.
    pub fn start(&mut self, bases: &[Vec<u16>]) -> Result<(), GuestError> {
        for (port, bases) in self.ports.iter_mut().zip(bases) {
            let Port { session, pairs, .. } = port;
            let queues: Vec<&mut Queue> =
                pairs.iter_mut().flat_map(|p| [p.rx.queue(), p.tx.queue()]).collect();
            for (index, (queue, base)) in queues.iter().zip(bases).enumerate() {
                session.start_ring(index, queue.area(), queue.events(), *base)?;
            }
            for index in 0..queues.len() {
                session.enable_ring(index, true)?;
            }
            // What was made available before the backend looked at its kick eventfd.
            for queue in queues {
                queue.kick();
            }
        }
        Ok(())
    }

    /// Stop all rings, clear them and start them again: nothing sent or received before
    /// matters any more.
    ///
    /// # Errors
    /// The backend's.
    pub fn restart(&mut self) -> Result<(), GuestError> {
        let mut bases = self.stop()?;
        self.clear();
        for port in &mut bases {
            port.fill(self.options.first_index);
        }
        self.start(&bases)
    }

    /// Send the memory table again, as frontends do while rings run.
    ///
    /// # Errors
    /// The backend's.
    pub fn resend_memory(&mut self) -> Result<(), GuestError> {
        for port in &mut self.ports {
            port.session.send_memory(&port.ram)?;
        }
        Ok(())
    }

    /// Rings and pools as new. The backend does not run them.
    fn clear(&mut self) {
        let first = self.options.first_index;
        for pair in self.ports.iter_mut().flat_map(|p| p.pairs.iter_mut()) {
            pair.rx_pool.reset();
            pair.tx_pool.reset();
            pair.rx.reset(&mut pair.rx_pool, first);
            pair.tx.reset(first);
        }
    }

    fn queues(&mut self) -> impl Iterator<Item = &mut Queue> {
        let pairs = self.ports.iter_mut().flat_map(|p| p.pairs.iter_mut());
        pairs.flat_map(|p| [p.rx.queue(), p.tx.queue()])
    }

    /// Before a run: no packet of an earlier one is on its way out.
    pub(super) fn prepare(&mut self) -> Result<(), GuestError> {
        self.epoch += 1;
        let pairs = self.ports.iter_mut().flat_map(|p| p.pairs.iter_mut());
        if pairs.into_iter().any(|p| p.tx.queue().outstanding() > 0) {
            self.restart()
        } else {
            Ok(())
        }
    }

    /// A round moved nothing: breathe, or sleep until a ring has something. `tx`: sent packets
    /// that come back are worth waking up for.
    #[inline]
    pub(super) fn rest(&mut self, tx: bool, meter: &mut Meter) -> Result<Tick, GuestError> {
        if !self.options.interrupts {
            arch::relax();
            return Ok(meter.round(0));
        }
        let Guest { ports, idle, .. } = self;
        let mut queues = Vec::new();
        for pair in ports.iter_mut().flat_map(|p| p.pairs.iter_mut()) {
            queues.push(pair.rx.queue());
            if tx {
                queues.push(pair.tx.queue());
            }
        }
        idle.wait(&mut queues)?;
        Ok(meter.look())
    }

    /// Wake-ups that were asked for and did not come, since the connection.
    pub(super) fn lost_interrupts(&self) -> u64 {
        self.idle.lost()
    }

    /// Ten times a second: are the backends still there?
    pub(super) fn check_alive(&self) -> Result<(), GuestError> {
        match self.ports.iter().position(|p| !p.session.alive()) {
            Some(port) => Err(GuestError::Disconnected(port)),
            None => Ok(()),
        }
    }
}

/// Take back all packets that the backend still has, into `pool`; what it does not give back
/// stays outstanding.
pub(super) fn drain(tx: &mut TxRing, pool: &mut Pool) -> Result<(), RingError> {
    let mut deadline = Instant::now() + DRAIN;
    while tx.queue().outstanding() > 0 {
        if tx.reclaim(pool)? > 0 {
            deadline = Instant::now() + DRAIN;
        } else if Instant::now() > deadline {
            break;
        } else {
            arch::relax();
        }
    }
    Ok(())
}

struct PairPlan {
    rx: QueuePlan,
    tx: QueuePlan,
    rx_pool: Geometry,
    tx_pool: Geometry,
}

type Memory = (Arc<Ram>, Vec<PairPlan>);

/// The memory of each of `ports` ports: one for all of them, or one each.
fn memories(options: &GuestOptions, ports: usize) -> io::Result<Vec<Memory>> {
    let pairs = usize::from(options.queue_pairs);
    if !options.shared_memory {
        return (0..ports).map(|number| memory(options, pairs, number as u64)).collect();
    }
    let (ram, mut plans) = memory(options, pairs * ports, 0)?;
    let mut memories = Vec::new();
    for _ in 0..ports {
        memories.push((Arc::clone(&ram), plans.drain(..pairs).collect()));
    }
    Ok(memories)
}

fn memory(options: &GuestOptions, pairs: usize, number: u64) -> io::Result<Memory> {
    let mut plan = Plan::default();
    let (size, header, layout) = (options.queue_size, options.header_len(), options.layout);
    // `io` sends on what it received, over as many buffers.
    let longest = layout.pieces() * options.buffers_for(MAX_PACKET);
    let queues: Vec<_> = (0..pairs)
        .map(|_| {
            let rx = QueuePlan::new(&mut plan, size, options.table, layout.pieces());
            let tx = QueuePlan::new(&mut plan, size, options.table, longest);
            (rx, tx)
        })
        .collect();
    let whole = plan.place(0, 1);
    let plans = queues
        .into_iter()
        .map(|(rx, tx)| PairPlan {
            rx,
            tx,
            rx_pool: Geometry::new(&mut plan, size, options.rx_capacity(), header, layout),
            tx_pool: Geometry::new(&mut plan, size, options.tx_capacity(), header, layout),
        })
        .collect();
    Ok((Arc::new(Ram::new(&plan, whole, options.regions, number)?), plans))
}

fn make_pair(options: &GuestOptions, ram: &Arc<Ram>, plan: PairPlan) -> io::Result<QueuePair> {
    let features = QueueFeatures { event_idx: options.event_idx, in_order: options.in_order };
    let rx = Queue::new(Arc::clone(ram), plan.rx, features, true)?;
    let tx = Queue::new(Arc::clone(ram), plan.tx, features, false)?;
    Ok(QueuePair {
        rx: RxRing::new(rx, options.mergeable),
        rx_pool: Pool::new(Arc::clone(ram), plan.rx_pool),
        tx: TxRing::new(tx),
        tx_pool: Pool::new(Arc::clone(ram), plan.tx_pool),
    })
}
