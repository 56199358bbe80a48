//! A worker's sleep against guests that kick when nobody waits, kick and lie, or change what
//! their fds are.

use super::*;
use crate::journal::{Followers, Journal};
use crate::memory::{GuestMemory, RegionSpec};
use crate::port::RxQueue;
use crate::virtio::{RingAddresses, RingSetup};
use crate::worker::Command;
use std::fs::File;
use std::io::Write;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};

const AVAIL: u64 = 0x1000;
const USED: u64 = 0x2000;

struct Guest {
    memory: File,
    kick: File,
    journal: Arc<Journal>,
}

impl Guest {
    fn new(flags: i32) -> Self {
        let memory = sys::memfd(c"guest", 0x3000).unwrap();
        // SAFETY: no pointers; the descriptor is new and ours.
        let kick = unsafe { File::from_raw_fd(libc::eventfd(0, flags)) };
        Guest { memory, kick, journal: Arc::default() }
    }

    fn ring(&self) -> Box<SplitRing> {
        let file = self.memory.try_clone().unwrap();
        let region = RegionSpec { guest: 0, size: 0x3000, user: 0, offset: 0, file };
        let setup = RingSetup {
            size: 8,
            addresses: Some(RingAddresses { desc: 0, avail: AVAIL, used: USED }),
            kick: Some(self.kick.try_clone().unwrap()),
            enabled: true,
            index: 1,
            journal: Arc::clone(&self.journal),
            ..RingSetup::default()
        };
        let memory = GuestMemory::map(vec![region], &Arc::default()).unwrap();
        Box::new(SplitRing::start(setup, memory, 1 << 32).map_err(|(_, error)| error).unwrap())
    }

    fn set_avail_idx(&self, idx: u16) {
        self.memory.write_at(&idx.to_le_bytes(), AVAIL + 2).unwrap();
    }

    fn kick(&self) {
        (&self.kick).write_all(&1u64.to_ne_bytes()).unwrap();
    }

    /// Does the guest believe that it should kick?
    fn is_asked_for_kicks(&self) -> bool {
        let mut flags = [0; 2];
        self.memory.read_exact_at(&mut flags, USED).unwrap();
        flags == [0, 0]
    }
}

/// A port of one queue pair, and the worker's view of it.
struct Queues {
    sleeper: Sleeper,
    receivers: Vec<Receiver>,
    outputs: Vec<Option<TxQueue>>,
}

impl Queues {
    /// The guest's transmit ring is `from_guest`, its receive ring `to_guest`.
    fn new(from_guest: Option<&Guest>, to_guest: Option<&Guest>, paced: bool) -> Self {
        let sleeper = Sleeper::new(&Arc::new(Inbox::new().unwrap())).unwrap();
        let mut rx = vhost::RxQueue::new(Arc::default());
        let mut tx = vhost::TxQueue::new(&[Arc::default()]);
        if let Some(guest) = from_guest {
            let mut ring = guest.ring();
            sleeper.watch(0, 1, &mut ring);
            rx.put(ring);
        }
        if let Some(guest) = to_guest {
            let mut ring = guest.ring();
            sleeper.watch(0, 0, &mut ring);
            tx.put(0, ring);
        }
        let paced_by = paced.then_some(0);
        let receiver = Receiver::new((0, 0), RxQueue::Vhost(rx), &Arc::default(), paced_by);
        Queues { sleeper, receivers: vec![receiver], outputs: vec![Some(TxQueue::Vhost(tx))] }
    }

    /// Sleep again and again; gives how often that returned before the command at its end.
    fn wakeups(mut self, meanwhile: impl FnOnce()) -> usize {
        let inbox = Arc::clone(&self.sleeper.inbox);
        let wakeups = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while self.sleeper.inbox.take().is_none() {
                    self.sleeper.sleep(&mut self.receivers, &mut self.outputs);
                    wakeups.fetch_add(1, Ordering::Relaxed);
                }
            });
            meanwhile();
            std::thread::sleep(Duration::from_millis(100));
            inbox.post(Command::Quit);
        });
        wakeups.into_inner()
    }
}

#[test]
fn a_kick_wakes_once_whoever_waits_for_it() {
    let (from, to) = (Guest::new(libc::EFD_NONBLOCK), Guest::new(libc::EFD_NONBLOCK));
    let queues = Queues::new(Some(&from), Some(&to), false);
    // Every driver kicks its receive ring once it is filled.
    let wakeups = queues.wakeups(|| {
        to.kick();
        from.kick();
    });
    assert!((1..=3).contains(&wakeups), "{wakeups} wake-ups from two kicks and a command");
}

#[test]
fn a_broken_ring_that_is_kicked_lets_the_worker_sleep() {
    let guest = Guest::new(libc::EFD_NONBLOCK);
    let mut queues = Queues::new(Some(&guest), None, false);
    guest.set_avail_idx(9);
    assert_eq!(ring_of(&mut queues.receivers[0]).unwrap().room(), 0);
    assert!(ring_of(&mut queues.receivers[0]).unwrap().broken());
    let wakeups = queues.wakeups(|| guest.kick());
    assert!((1..=2).contains(&wakeups), "{wakeups} wake-ups from a kick and a command");
}

#[test]
fn a_kick_fd_made_blocking_again_stalls_nobody() {
    let guest = Guest::new(0);
    let queues = Queues::new(Some(&guest), None, false);
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(queues.wakeups(|| ())));
    let wakeups = ended.recv_timeout(Duration::from_secs(10)).expect("the worker waits for a kick");
    assert_eq!(wakeups, 1);
}

#[test]
fn room_made_just_before_a_sleep_is_seen() {
    let guest = Guest::new(libc::EFD_NONBLOCK);
    let mut queues = Queues::new(None, Some(&guest), true);
    // The last turn: no room.
    assert_eq!(queues.outputs[0].as_mut().unwrap().room(), 0);
    // The guest makes some, and is asked for no kick.
    assert!(!guest.is_asked_for_kicks());
    guest.set_avail_idx(1);
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        queues.sleeper.sleep(&mut queues.receivers, &mut queues.outputs);
        done.send(queues.outputs[0].as_mut().unwrap().room())
    });
    assert_eq!(ended.recv_timeout(Duration::from_secs(10)), Ok(1), "a wake-up was lost");
}

#[test]
fn a_paced_source_with_room_left_sleeps() {
    let (full, idle) = (Guest::new(libc::EFD_NONBLOCK), Guest::new(libc::EFD_NONBLOCK));
    full.set_avail_idx(1);
    let mut queues = Queues::new(Some(&idle), Some(&full), true);
    assert_eq!(queues.outputs[0].as_mut().unwrap().room(), 1);
    let wakeups = queues.wakeups(|| ());
    assert_eq!(wakeups, 1, "a source that has ended keeps the worker awake");
}

/// The frontend's memory is not shared: the guest puts packets into its own and kicks.
#[test]
fn kicks_of_a_ring_that_never_holds_anything_are_explained() {
    for (shared, told) in [(false, 1), (true, 0)] {
        let followers = Arc::default();
        let guest = Guest {
            journal: Arc::new(Journal::new("vhost:a", &followers)),
            ..Guest::new(libc::EFD_NONBLOCK)
        };
        let follow = followers.follow();
        let mut queues = Queues::new(Some(&guest), None, false);
        if shared {
            // A descriptor: an address.
            guest.memory.write_at(&[1], 7).unwrap();
        }
        for _ in 0..10 {
            guest.kick();
            queues.sleeper.sleep(&mut queues.receivers, &mut queues.outputs);
        }
        let lines: Vec<_> = follow.try_iter().map(|moment| moment.event.to_string()).collect();
        assert_eq!(lines.len(), told, "{lines:?}");
        assert!(lines.iter().all(|line| line.contains("share=on")), "{lines:?}");
    }
}

/// What a guest does whose memory is a private copy of what was shared.
#[test]
fn kicks_of_a_ring_that_stays_as_it_was_born_are_told() {
    let followers = Arc::<Followers>::default();
    let follow = followers.follow();
    let mut guest = Guest::new(libc::EFD_NONBLOCK);
    guest.journal = Arc::new(Journal::new("test", &followers));
    let queues = Queues::new(Some(&guest), None, false);
    queues.wakeups(|| {
        // The frontend's own, and the one that a driver makes with its first packet.
        for _ in 0..2 {
            guest.kick();
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let told: Vec<_> = follow.try_iter().map(|moment| moment.event.to_string()).collect();
    assert!(matches!(&told[..], [note] if note.ends_with("(share=on)?")), "{told:?}");
    // One that is used says nothing.
    let honest = Guest { journal: Arc::clone(&guest.journal), ..Guest::new(libc::EFD_NONBLOCK) };
    honest.memory.write_at(&[1], 8).unwrap();
    Queues::new(Some(&honest), None, false).wakeups(|| {
        for _ in 0..4 {
            honest.kick();
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    assert_eq!(follow.try_iter().count(), 0);
}
