//! The worker's loop: every receive queue in turn, burst by burst, run to completion.
//!
//! Promises: packets of one receive queue leave in the order they came; control is obeyed
//! between bursts only; the notify fence runs once a loop for all rings published in it; with
//! adaptive polling no wake-up is lost. Started by `bridge` on a thread of its own. Allocates
//! nothing and takes no lock but where commands come and where a ring breaks, which is told to
//! the port's journal.

use super::sleep::Sleeper;
use super::{Command, Inbox};
use crate::arch;
use crate::config::PollMode;
use crate::counters::{QueueCounters, Reason};
use crate::forward::bridge::TagEdit;
use crate::forward::{Forwarder, Lists, MAX_PORTS, Output, Outputs, Pairs, PortId};
use crate::packet::{ALL, Packets, Retagged};
use crate::port::{RxQueue, TxQueue, vhost};
use crate::stats::WorkerStats;
use crate::sys;
use crate::virtio::SplitRing;
use crate::virtio::order::Device;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::thread::JoinHandle;

/// A receive queue and what the worker must know of it.
pub struct Receiver {
    /// Of which port.
    pub port: PortId,
    /// Which queue pair of the port.
    pub pair: usize,
    /// The queue.
    pub queue: RxQueue,
    /// Where its losses are counted.
    pub counters: Arc<QueueCounters>,
    /// A source that never runs dry (a generator, a file) is asked for no more than this port
    /// has room for, so that nothing is made only to be dropped; one that is not there has none.
    /// An interface is paced, too: what waits there costs nothing, and the host sees it wait.
    pub paced_by: Option<PortId>,
    /// It was not asked in the last turn, for want of room.
    pub paused: bool,
    /// Its fd, an interface's, is in the worker's epoll set.
    pub watched: bool,
}

impl Receiver {
    /// Of the queue `pair` of `port`.
    pub fn new(
        (port, pair): (PortId, usize),
        queue: RxQueue,
        counters: &Arc<QueueCounters>,
        paced_by: Option<PortId>,
    ) -> Self {
        let counters = Arc::clone(counters);
        Receiver { port, pair, queue, counters, paced_by, paused: false, watched: false }
    }
}

/// A thread's worth of queues.
pub struct Worker {
    /// Receive queues, visited in this order.
    pub receivers: Vec<Receiver>,
    /// Transmit queues by port: those that this worker sends to, up to the last of them.
    pub outputs: Vec<Option<TxQueue>>,
    /// Decides where packets go.
    pub forwarder: Box<dyn Forwarder>,
    /// For packets that leave with other tags than they came with; made when it is needed.
    pub retagged: Option<Box<Retagged>>,
    /// Most packets a burst.
    pub burst: usize,
    /// How it waits.
    pub poll: PollMode,
    /// The CPU to run on.
    pub cpu: Option<usize>,
    /// What control asks.
    pub inbox: Arc<Inbox>,
    /// What it has done.
    pub stats: Arc<WorkerStats>,
}

impl Worker {
    /// Run on a thread of its own until told to quit. Rings that are still here then end with
    /// it.
    ///
    /// # Errors
    /// The system's: no thread, or no fds to wait with.
    pub fn start(mut self) -> io::Result<JoinHandle<()>> {
        let mut sleeper = Sleeper::new(&self.inbox)?;
        std::thread::Builder::new().name("worker".into()).spawn(move || {
            // Whatever ends the worker, even a panic, nobody shall wait for its rings.
            let run = AssertUnwindSafe(|| self.poll_until_quit(&mut sleeper));
            let ended = std::panic::catch_unwind(run);
            self.inbox.close();
            if let Err(panic) = ended {
                std::panic::resume_unwind(panic);
            }
        })
    }

    fn poll_until_quit(&mut self, sleeper: &mut Sleeper) {
        if let Some(cpu) = self.cpu
            && let Err(error) = sys::pin_to_cpu(cpu)
        {
            tracing::warn!("cannot pin a worker to cpu {cpu}: {error}");
        }
        let mut packets = Packets::new();
        let mut verdicts = Outputs::new();
        let mut last = arch::cycles();
        loop {
            // One a loop, so that a frontend with hundreds of rings does not hold up the ports of
            // others. Obeying is being busy: no sleep before the inbox was seen empty.
            if let Some(command) = self.inbox.take() {
                if !self.obey(command, sleeper) {
                    return;
                }
                // A new ring may hold packets whose kick went elsewhere: poll before sleeping.
                sleeper.busy();
            }
            let moved = self.turn(&mut packets, &mut verdicts);
            let now = arch::cycles();
            self.stats.record(moved, now.wrapping_sub(last));
            self.stats.window(now);
            last = now;
            if moved > 0 {
                sleeper.busy();
            } else {
                arch::relax();
                if self.poll == PollMode::Adaptive && sleeper.is_long_idle() {
                    self.outputs.iter_mut().flatten().for_each(TxQueue::flush);
                    sleeper.sleep(&mut self.receivers, &mut self.outputs);
                    last = arch::cycles();
                }
            }
        }
    }

    /// Visit every receive queue once. Returns how many packets were received.
    #[inline]
    fn turn(&mut self, packets: &mut Packets, verdicts: &mut Outputs) -> u64 {
        let mut moved = 0;
        let mut published = false;
        for receiver in &mut self.receivers {
            let max = match receiver.paced_by {
                None => self.burst,
                Some(port) => room(&mut self.outputs, port).min(self.burst),
            };
            receiver.paused = max == 0;
            if receiver.paused {
                continue;
            }
            let burst = receiver.queue.receive(packets, max);
            let n = burst.packets.len();
            if n > 0 {
                moved += n as u64;
                verdicts.begin(n);
                self.forwarder.forward(receiver.port, burst.packets, verdicts);
                for (run, output) in verdicts.runs() {
                    let which = &ALL[run];
                    match output {
                        Output::Port(port) => match self.outputs.get_mut(port) {
                            Some(Some(output)) => output.send(burst.packets, which),
                            _ => receiver.counters.lost(Reason::NotConnected, which.len() as u64),
                        },
                        Output::Drop(reason) => receiver.counters.lost(reason, which.len() as u64),
                        Output::Listed => {
                            if let Some(lists) = self.forwarder.lists() {
                                let sent = (&*burst.packets, &*receiver.counters);
                                send_lists(lists, &mut self.outputs, &mut self.retagged, sent);
                            }
                        }
                        Output::Consumed => {}
                    }
                }
            }
            burst.complete();
            published |= ring_of(receiver).is_some_and(|ring| ring.wants_notify_check());
        }
        if published || moved > 0 {
            self.notify();
        }
        moved
    }

    /// One fence, then the question "do you want to know?" for every ring published since.
    fn notify(&mut self) {
        Device::fence_before_notify_check();
        for receiver in &mut self.receivers {
            if let Some(ring) = ring_of(receiver) {
                ring.notify_after_fence();
            }
        }
        for output in self.outputs.iter_mut().flatten() {
            if let Some(queue) = output.vhost() {
                queue.rings().for_each(SplitRing::notify_after_fence);
            }
        }
    }

    /// Do what control asks. False: quit.
    #[cold]
    fn obey(&mut self, command: Command, sleeper: &mut Sleeper) -> bool {
        match command {
            Command::StartRing { port, index, mut ring } => {
                sleeper.watch(port, index, &mut ring);
                // Control has asked back what was there before; `None` it is.
                drop(self.put_ring(port, index, ring));
            }
            Command::StopRing { port, index, reply } => {
                let ring = self.take_ring(port, index);
                if let Some(ring) = &ring {
                    sleeper.forget(ring);
                }
                // An error means that the session has given up waiting.
                let _ = reply.send(ring);
            }
            Command::Inject { port, frame, done } => {
                if let Some(queue) = self.receiver(port, 0).and_then(|r| r.queue.vhost()) {
                    queue.inject(frame);
                }
                let _ = done.send(());
            }
            Command::PutReceiver { port, queue, receiver, reply } => {
                let found = self.receivers.iter_mut().find(|r| r.port == port && r.pair == queue);
                let old = match found.and_then(|r| Some((r.queue.nic()?.fd(), r))) {
                    Some((fd, at)) => {
                        sleeper.ignore(fd, &mut at.watched);
                        at.queue.nic().and_then(|queue| queue.put(receiver))
                    }
                    None => receiver,
                };
                let _ = reply.send(old);
            }
            Command::PutSender { port, sender, reply } => {
                let output = self.outputs.get_mut(port).and_then(Option::as_mut);
                let old = match output.and_then(TxQueue::nic) {
                    Some(queue) => queue.put(sender),
                    None => sender,
                };
                let _ = reply.send(old);
            }
            Command::AddReceivers(receivers) => self.receivers.extend(receivers),
            Command::AddOutput { port, output } => self.add_output(port, *output),
            Command::Pair(pairs) => self.pair(pairs),
            Command::SetPorts(ports) => self.forwarder.set_ports(&ports),
            Command::RemoveReceivers { port, reply } => {
                let theirs = |r: &mut Receiver| r.port % MAX_PORTS == port;
                let mut gone: Vec<_> = self.receivers.extract_if(.., theirs).collect();
                // A ring that its session could not take back.
                gone.iter_mut().filter_map(ring_of).for_each(|ring| sleeper.forget(ring));
                for receiver in &mut gone {
                    let fd = receiver.queue.nic().and_then(|queue| queue.fd());
                    sleeper.ignore(fd, &mut receiver.watched);
                }
                let _ = reply.send(gone);
            }
            Command::RemoveOutput { port, reply } => {
                let mut gone = self.remove_output(port);
                let queue = gone.as_mut().and_then(TxQueue::vhost);
                let rings = queue.into_iter().flat_map(vhost::TxQueue::rings);
                rings.for_each(|ring| sleeper.forget(ring));
                let _ = reply.send(gone.map(Box::new));
            }
            Command::ClearStats { done } => {
                self.stats.clear();
                let _ = done.send(());
            }
            Command::Quit => return false,
        }
        true
    }

    fn add_output(&mut self, port: PortId, output: TxQueue) {
        if self.outputs.len() <= port {
            self.outputs.resize_with(port + 1, || None);
        }
        self.outputs[port] = Some(output);
    }

    fn remove_output(&mut self, port: PortId) -> Option<TxQueue> {
        let gone = self.outputs.get_mut(port)?.take();
        // Every loop looks at all of them.
        while self.outputs.pop_if(|output| output.is_none()).is_some() {}
        gone
    }

    fn pair(&mut self, pairs: Pairs) {
        self.forwarder.pair(pairs);
        for receiver in &mut self.receivers {
            // A file, which is sent to the paired port: a generator is numbered otherwise.
            if receiver.paced_by.is_some() && receiver.port < MAX_PORTS {
                receiver.paced_by = Some(pairs.of(receiver.port));
            }
        }
    }

    fn put_ring(
        &mut self,
        port: PortId,
        index: u16,
        ring: Box<SplitRing>,
    ) -> Option<Box<SplitRing>> {
        match pair_of(index) {
            (pair, Half::Receive) => vhost_output(&mut self.outputs, port)?.put(pair, ring),
            (pair, Half::Transmit) => self.receiver(port, pair)?.queue.vhost()?.put(ring),
        }
    }

    fn take_ring(&mut self, port: PortId, index: u16) -> Option<Box<SplitRing>> {
        match pair_of(index) {
            (pair, Half::Receive) => vhost_output(&mut self.outputs, port)?.take(pair),
            (pair, Half::Transmit) => self.receiver(port, pair)?.queue.vhost()?.take(),
        }
    }

    fn receiver(&mut self, port: PortId, pair: usize) -> Option<&mut Receiver> {
        self.receivers.iter_mut().find(|r| r.port == port && r.pair == pair)
    }
}

/// Send what a forwarder has listed, and count what it has not.
fn send_lists(
    lists: &Lists,
    outputs: &mut [Option<TxQueue>],
    retagged: &mut Option<Box<Retagged>>,
    (packets, counters): (&Packets, &QueueCounters),
) {
    for list in lists.iter() {
        let Some(Some(output)) = outputs.get_mut(list.port) else {
            counters.lost(Reason::NotConnected, list.which.len() as u64);
            continue;
        };
        let edit = match list.edit {
            TagEdit::Keep => {
                output.send(packets, &list.which);
                continue;
            }
            TagEdit::Pop => (true, None),
            TagEdit::Push(vid) => (false, Some(vid)),
            TagEdit::Set(vid) => (true, Some(vid)),
        };
        let retagged = retagged.get_or_insert_with(Box::default);
        let send = |packets: &Packets, which: &[u8]| output.send(packets, which);
        let left_out = retagged.with(packets, &list.which, edit, send);
        counters.lost(Reason::ChainTooLong, left_out);
    }
    for &(reason, n) in lists.lost() {
        counters.lost(reason, n);
    }
}

/// The two virtqueues of a pair, in the guest's words (virtio 1.2, 5.1.2).
enum Half {
    Receive,
    Transmit,
}

fn pair_of(index: u16) -> (usize, Half) {
    (usize::from(index / 2), if index.is_multiple_of(2) { Half::Receive } else { Half::Transmit })
}

/// The ring behind a receiver, if it has one.
#[inline]
pub(super) fn ring_of(receiver: &mut Receiver) -> Option<&mut SplitRing> {
    receiver.queue.vhost()?.ring()
}

fn vhost_output(outputs: &mut [Option<TxQueue>], port: PortId) -> Option<&mut vhost::TxQueue> {
    outputs.get_mut(port)?.as_mut()?.vhost()
}

#[inline]
fn room(outputs: &mut [Option<TxQueue>], port: PortId) -> usize {
    outputs.get_mut(port).and_then(Option::as_mut).map_or(0, TxQueue::room)
}
