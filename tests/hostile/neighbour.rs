//! The guest on the ports beside the attacker's: honest, and watching. It loses nothing, and
//! its packets are not late.
//!
//! "Not late" is judged on machines that do other things as well, where the scheduler alone can
//! hold any thread up for milliseconds. So the stream is cut into short windows, and it is the
//! best window under attack that is compared with the best one without: what the machine does
//! comes and goes, and some window is spared it, but a worker that is wedged, or walks chains
//! without a budget, is slow in all of them. Below [`FLOOR`] nothing is a verdict: so much one
//! other thread on the same CPU costs.

use super::common::bridge::{Bed, LIMIT};
use ringbridge::frontend::{Guest, GuestOptions, Link, Report, Sizes, VerifyPlan};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Ports of the neighbour; the attacker has 0 and 1.
const PORTS: [usize; 2] = [2, 3];
/// Few packets in flight: their time is the worker's, not that of the queues between.
const PLAN: VerifyPlan = VerifyPlan { sizes: Sizes { min: 14, max: 1518 }, in_flight: 8 };
/// How long the stream is watched before a verdict.
const WINDOW: Duration = Duration::from_millis(50);
/// Windows of one kind in a row.
const ROW: usize = 2;
/// Microseconds that are never too late. A walk without a budget takes hundreds of thousands; one
/// with a budget, of some thousand descriptors a burst, takes two thousand if nothing is optimised.
const FLOOR: f64 = if cfg!(debug_assertions) { 10_000.0 } else { 2000.0 };

/// A bridge of four ports, all served by one worker, and the neighbour's stream through it.
pub struct Street {
    pub bed: Bed,
    watch: Arc<Watch>,
    stream: JoinHandle<Losses>,
    quiet: f64,
}

/// What the neighbour lost, over all windows: lost, corrupt, duplicated packets, lost
/// interrupts; and what it received.
#[derive(Debug, Default, PartialEq, Eq)]
struct Losses {
    losses: [u64; 4],
    received: u64,
}

impl Losses {
    fn add(&mut self, report: &Report) {
        let more = [report.lost, report.corrupt, report.duplicated, report.lost_interrupts];
        for (sum, more) in self.losses.iter_mut().zip(more) {
            *sum += more;
        }
        self.received += report.rx_packets;
    }
}

#[derive(Default)]
struct Watch {
    stop: AtomicBool,
    scene: Mutex<Scene>,
}

/// What happens around the neighbour, and the p99 of its windows meanwhile, in microseconds.
#[derive(Default)]
struct Scene {
    number: u64,
    /// What is repeated there has been done so often.
    rounds: u64,
    /// Windows count only with a whole round in them.
    repeated: bool,
    windows: Vec<f64>,
}

impl Scene {
    fn best(&self) -> f64 {
        self.windows.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

impl Watch {
    fn scene(&self) -> MutexGuard<'_, Scene> {
        self.scene.lock().unwrap()
    }

    /// Another scene begins; how the last one was.
    fn begin(&self, repeated: bool) -> Scene {
        let mut scene = self.scene();
        let number = scene.number + 1;
        std::mem::replace(&mut scene, Scene { number, repeated, ..Scene::default() })
    }

    /// Repeat `round` until so many windows have been seen under it: the best.
    fn best_of(&self, windows: usize, round: &mut impl FnMut()) -> f64 {
        let end = Instant::now() + LIMIT;
        self.begin(true);
        loop {
            round();
            let mut scene = self.scene();
            scene.rounds += 1;
            if scene.windows.len() >= windows {
                return scene.best();
            }
            drop(scene);
            assert!(Instant::now() < end, "the neighbour is not served, or rounds take too long");
        }
    }

    fn stream(&self, guest: &mut Guest) -> Losses {
        let mut losses = Losses::default();
        let never = AtomicBool::new(false);
        while !self.stop.load(Ordering::Relaxed) {
            let (number, rounds) = {
                let scene = self.scene();
                (scene.number, scene.rounds)
            };
            let report = guest.verify(PLAN, Some(WINDOW), &never).unwrap();
            losses.add(&report);
            let mut scene = self.scene();
            if scene.number == number && (!scene.repeated || scene.rounds >= rounds + 2) {
                scene.windows.push(report.latency.map_or(f64::INFINITY, |latency| latency.p99));
            }
        }
        losses
    }
}

/// Nothing happens, for a moment.
fn nothing() {
    thread::sleep(Duration::from_millis(1));
}

impl Street {
    pub fn new() -> Self {
        let bed = Bed::new(4);
        let options = GuestOptions {
            event_idx: true,
            interrupts: true,
            buffer_size: Some(700),
            ..GuestOptions::default()
        };
        let link = Link::to(PORTS.map(|port| bed.socket(port)));
        let mut guest = Guest::connect(&Link { options, ..link }).unwrap();
        let watch = Arc::new(Watch::default());
        let mine = Arc::clone(&watch);
        let stream = thread::spawn(move || mine.stream(&mut guest));
        let quiet = watch.best_of(ROW, &mut nothing);
        watch.begin(false);
        Street { bed, watch, stream, quiet }
    }

    /// The neighbour's packets go on.
    pub fn expect_service(&self) {
        let before = self.bed.counters().ports[PORTS[1]].tx.packets;
        self.bed.expect("the neighbour is served", |s| s.ports[PORTS[1]].tx.packets > before + 50);
    }

    /// While `attack` is repeated the p99 is at most twice that while `placebo` is, which
    /// should load the machine's CPUs as much. Both are quick: many of each go into a window.
    pub fn expect_in_time(&self, what: &str, mut placebo: impl FnMut(), mut attack: impl FnMut()) {
        let end = Instant::now() + LIMIT;
        let (mut quiet, mut attacked) = (f64::INFINITY, f64::INFINITY);
        loop {
            quiet = quiet.min(self.watch.best_of(ROW, &mut placebo));
            attacked = attacked.min(self.watch.best_of(ROW, &mut attack));
            if attacked <= FLOOR.max(2.0 * quiet) {
                break;
            }
            assert!(Instant::now() < end, "{what}: p99 {attacked} us under attack, {quiet} before");
        }
        self.watch.begin(false);
    }

    /// The neighbour has lost nothing, to the end, and all the while its packets came in time.
    pub fn finish(self) {
        self.expect_service();
        let during = self.watch.begin(false);
        let quiet = self.quiet.min(self.watch.best_of(ROW, &mut nothing));
        let best = during.best();
        // Some tests are over before there is anything to compare.
        if during.windows.len() >= 4 {
            assert!(best <= FLOOR.max(2.0 * quiet), "p99 {best} us under attack, {quiet} without");
        }
        self.watch.stop.store(true, Ordering::Relaxed);
        let seen = self.stream.join().unwrap();
        assert_eq!(seen.losses, [0; 4], "lost, corrupt, duplicated, interrupts lost");
        let bridge = self.bed.stop().0;
        for port in PORTS.map(|port| &bridge.ports[port]) {
            assert_eq!(port.rx.drops.total() + port.tx.drops.total(), 0, "{port:?}");
        }
        assert_eq!(bridge.ports[PORTS[1]].tx.packets, seen.received);
    }
}
