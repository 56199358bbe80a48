//! What happens to a port, told once: a line in the log, an event to whoever follows, and the
//! port's present state.
//!
//! Promises: what a guest or its frontend can cause fills no log: a port has so many lines in
//! stock and gains one a second, and those left out are counted; telling waits for no follower.
//! Every refused message is counted by its reason. Told to by `vhost_user`, `control`, `worker`
//! and, when a ring breaks, `virtio`; read by `stats` and by those who ask. Knows no ring and
//! no socket.

#![forbid(unsafe_code)]

mod event;
mod limiter;

pub use event::{Event, Moment};

use limiter::Limiter;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tracing::Level;

/// Events that a follower may be behind.
const BEHIND: usize = 4096;

/// The followers of all ports of a bridge.
#[derive(Debug, Default)]
pub struct Followers(Mutex<Vec<Follower>>);

#[derive(Debug)]
struct Follower {
    moments: SyncSender<Moment>,
    /// Events that it had no room for since the last one that it got.
    missed: u64,
}

impl Followers {
    /// All events from now on. A follower that falls too far behind misses some and is told how
    /// many ([`Event::Missed`]); one that hangs up is forgotten.
    pub fn follow(&self) -> Receiver<Moment> {
        let (moments, follow) = sync_channel(BEHIND);
        lock(&self.0).push(Follower { moments, missed: 0 });
        follow
    }

    fn tell(&self, moment: &Moment) {
        lock(&self.0).retain_mut(|follower| follower.tell(moment));
    }
}

impl Follower {
    /// False: it is gone.
    fn tell(&mut self, moment: &Moment) -> bool {
        if self.missed > 0 {
            let missed = Moment { event: Event::Missed { events: self.missed }, ..moment.clone() };
            match self.moments.try_send(missed) {
                Ok(()) => self.missed = 0,
                Err(TrySendError::Full(_)) => {
                    self.missed += 1;
                    return true;
                }
                Err(TrySendError::Disconnected(_)) => return false,
            }
        }
        match self.moments.try_send(moment.clone()) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                self.missed += 1;
                true
            }
            Err(TrySendError::Disconnected(_)) => false,
        }
    }
}

/// One virtqueue, as far as it concerns the operator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RingState {
    /// A worker has it.
    pub running: bool,
    /// It may move packets.
    pub enabled: bool,
    /// It contradicted itself, and nothing is taken from it any more.
    pub broken: bool,
    /// Its size.
    pub entries: u16,
}

impl RingState {
    fn works(self) -> bool {
        self.running && self.enabled && !self.broken
    }
}

/// What is known of a port at this moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    /// A frontend is connected.
    pub connected: bool,
    /// At least one queue pair works in both directions.
    pub link: bool,
    /// How often a frontend has connected.
    pub connects: u64,
    /// Acknowledged virtio features.
    pub features: u64,
    /// Their names.
    pub feature_names: String,
    /// Bytes of guest memory.
    pub memory: u64,
    /// Regions that these lie in.
    pub regions: usize,
    /// The MTU that the frontend has set.
    pub mtu: Option<u16>,
    /// The virtqueues, by index.
    pub rings: Vec<RingState>,
    /// What the frontend was refused, and what its guest broke, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Log lines that were left out because there were too many.
    pub log_suppressed: u64,
}

/// The journal of one port. The default one belongs to nobody and is followed by nobody.
#[derive(Debug, Default)]
pub struct Journal {
    port: Arc<str>,
    followers: Arc<Followers>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    status: Status,
    limiter: Limiter,
}

impl State {
    fn ring(&mut self, index: u16) -> &mut RingState {
        let (rings, at) = (&mut self.status.rings, usize::from(index));
        if rings.len() <= at {
            rings.resize(at + 1, RingState::default());
        }
        &mut rings[at]
    }
}

impl Journal {
    /// Of the port of this name.
    pub fn new(port: &str, followers: &Arc<Followers>) -> Self {
        Journal { port: port.into(), followers: Arc::clone(followers), state: Mutex::default() }
    }

    /// The port's name.
    pub fn port(&self) -> &str {
        &self.port
    }

    /// What is known of the port now.
    pub fn status(&self) -> Status {
        lock(&self.state).status.clone()
    }

    /// Something has happened. Of a ring, tell [`Journal::ring`].
    pub fn tell(&self, event: Event) {
        self.tell_locked(&mut lock(&self.state), event);
    }

    /// Ring `index` is now like this; whether that is news is found out here.
    pub fn ring(&self, index: u16, now: RingState) {
        let mut state = lock(&self.state);
        let ring = state.ring(index);
        let before = *ring;
        // A ring that was broken and goes on running is as broken as it was.
        *ring = RingState { broken: before.broken && now.running, ..now };
        if before == *ring {
            return;
        }
        let RingState { running, enabled, entries, .. } = now;
        // What a stopped ring is set to is not news before it runs.
        if running || before.running {
            self.tell_locked(&mut state, Event::Ring { ring: index, running, enabled, entries });
        }
        self.check_link(&mut state);
    }

    /// Ring `index` was started anew: what it did before is forgiven.
    pub fn mended(&self, index: u16) {
        lock(&self.state).ring(index).broken = false;
    }

    /// Ring `index` contradicts itself and was stopped.
    pub fn broken(&self, index: u16, why: String) {
        let mut state = lock(&self.state);
        // It may break before it was told that it runs.
        state.ring(index).broken = true;
        self.tell_locked(&mut state, Event::Broken { ring: index, why });
        self.check_link(&mut state);
    }

    /// The link is up while a queue pair works.
    fn check_link(&self, state: &mut State) {
        let works = |pair: &[RingState]| pair.len() == 2 && pair.iter().all(|ring| ring.works());
        let up = state.status.rings.chunks(2).any(works);
        if state.status.link != up {
            state.status.link = up;
            self.tell_locked(state, Event::Link { up });
        }
    }

    fn tell_locked(&self, state: &mut State, event: Event) {
        event.note(&mut state.status);
        match state.limiter.admit() {
            Some(left_out) => self.log(&event, left_out),
            None => state.status.log_suppressed += 1,
        }
        self.followers.tell(&Moment::now(&self.port, event));
    }

    fn log(&self, event: &Event, left_out: u64) {
        let port = &self.port;
        let and = match left_out {
            0 => String::new(),
            n => format!(" ({n} lines of this port left out before)"),
        };
        match event.level() {
            Level::ERROR => tracing::error!("{port}: {event}{and}"),
            Level::WARN => tracing::warn!("{port}: {event}{and}"),
            _ => tracing::info!("{port}: {event}{and}"),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that panics runs under the locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKS: RingState = RingState { running: true, enabled: true, broken: false, entries: 64 };

    fn told(follow: &Receiver<Moment>) -> Vec<Event> {
        follow.try_iter().map(|moment| moment.event).collect()
    }

    #[test]
    fn rings_are_news_once_and_make_the_link() {
        let followers = Arc::default();
        let journal = Journal::new("vhost:a", &followers);
        let follow = followers.follow();
        let ring = |ring, running| Event::Ring { ring, running, enabled: true, entries: 64 };
        for _ in 0..3 {
            journal.ring(0, WORKS);
            journal.ring(1, RingState { running: false, ..WORKS });
        }
        assert_eq!(told(&follow), [ring(0, true)]);
        journal.ring(1, WORKS);
        assert_eq!(told(&follow), [ring(1, true), Event::Link { up: true }]);
        assert!(journal.status().link);
        journal.ring(0, RingState { running: false, ..WORKS });
        assert_eq!(told(&follow), [ring(0, false), Event::Link { up: false }]);
    }

    #[test]
    fn a_broken_ring_takes_the_link_down_until_it_is_mended() {
        let journal = Journal::default();
        journal.ring(0, WORKS);
        journal.ring(1, WORKS);
        journal.broken(1, "it lies".into());
        journal.ring(1, WORKS);
        assert!(!journal.status().link);
        assert_eq!(journal.status().refused["ring_broken"], 1);
        journal.mended(1);
        journal.ring(1, RingState { entries: 128, ..WORKS });
        assert!(journal.status().link);
    }

    #[test]
    fn what_is_refused_is_counted_by_reason() {
        let journal = Journal::default();
        for reason in ["ring_size", "ring_size", "no_ring"] {
            journal.tell(Event::refused("SET_VRING_NUM", reason, "because".into()));
        }
        let counts: Vec<_> = journal.status().refused.into_iter().collect();
        assert_eq!(counts, [("no_ring", 1), ("ring_size", 2)]);
    }

    #[test]
    fn a_disconnected_port_has_nothing() {
        let journal = Journal::default();
        journal.tell(Event::Connected);
        journal.tell(Event::Memory { bytes: 4096, regions: 1 });
        journal.tell(Event::Mtu { mtu: 1500 });
        journal.ring(0, WORKS);
        assert!(journal.status().connected);
        journal.ring(0, RingState::default());
        journal.tell(Event::Disconnected { why: None });
        let rings = vec![RingState::default()];
        assert_eq!(journal.status(), Status { connects: 1, rings, ..Status::default() });
    }

    #[test]
    fn a_flood_is_left_out_of_the_log_and_counted() {
        let journal = Journal::default();
        for _ in 0..10_000 {
            journal.tell(Event::Connected);
        }
        let left_out = journal.status().log_suppressed;
        assert!((9_000..10_000).contains(&left_out), "{left_out}");
        assert_eq!(journal.status().connects, 10_000);
    }

    #[test]
    fn a_slow_follower_is_told_what_it_missed() {
        let followers = Arc::default();
        let journal = Journal::new("a", &followers);
        let (follow, gone) = (followers.follow(), followers.follow());
        drop(gone);
        for _ in 0..BEHIND + 7 {
            journal.tell(Event::Connected);
        }
        assert_eq!(told(&follow).len(), BEHIND);
        journal.tell(Event::Link { up: true });
        assert_eq!(told(&follow), [Event::Missed { events: 7 }, Event::Link { up: true }]);
        assert_eq!(lock(&followers.0).len(), 1);
    }
}
