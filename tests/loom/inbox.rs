//! A worker's inbox beside its ring: commands and kicks wake the same sleep.

use crate::doorbell::Doorbells;
use crate::ring::Ring;
use crate::wake::{arm_and_recheck, submit};
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, Ordering::Relaxed};
use loom::thread;
use std::collections::VecDeque;
use std::sync::Arc;

const KICK: usize = 0;
const WAKE: usize = 1;

/// `worker::Inbox` as far as its protocol goes.
struct Inbox {
    queue: Mutex<VecDeque<u16>>,
    pending: AtomicBool,
}

impl Inbox {
    fn post(&self, command: u16, bells: &Doorbells) {
        let mut queue = self.queue.lock().unwrap();
        queue.push_back(command);
        self.pending.store(true, Relaxed);
        drop(queue);
        bells.ring(WAKE);
    }

    fn take(&self) -> Option<u16> {
        if !self.pending.load(Relaxed) {
            return None;
        }
        let mut queue = self.queue.lock().unwrap();
        let command = queue.pop_front();
        if command.is_none() {
            self.pending.store(false, Relaxed);
        }
        command
    }
}

/// Two commands from the control thread and a chain from a guest, to one worker that sleeps.
/// With `LATE_CLEAR` it reads its eventfds after the look into the inbox, not before.
pub fn commands_and_a_kick<const LATE_CLEAR: bool>() {
    let ring = Ring::new(0, true);
    let bells = Doorbells::new();
    let inbox =
        Arc::new(Inbox { queue: Mutex::new(VecDeque::new()), pending: AtomicBool::new(false) });
    let (bell, theirs) = (bells.clone(), inbox.clone());
    let control = thread::spawn(move || (0..2).for_each(|i| theirs.post(i, &bell)));
    let bell = bells.clone();
    let driver = thread::spawn(move || submit(ring, &bell, KICK, 1));

    let (mut commands, mut next) = (0, 0);
    loop {
        while let Some(command) = inbox.take() {
            assert_eq!(command, commands);
            commands += 1;
        }
        if LATE_CLEAR {
            bells.clear();
        }
        let idx = ring.device().load_avail_idx();
        ring.check_available(next, idx);
        let moved = idx != next;
        next = idx;
        if commands == 2 && next == 1 {
            break;
        }
        if !moved {
            if arm_and_recheck(ring, next) {
                bells.wait();
                if !LATE_CLEAR {
                    bells.clear();
                }
            }
            ring.device().disarm();
        }
    }
    control.join().unwrap();
    driver.join().unwrap();
}
