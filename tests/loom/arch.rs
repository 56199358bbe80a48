//! What order.rs takes from `arch`, over loom's atomics, with one step that may be taken out.

#[path = "../../src/arch/step.rs"]
mod step;

use loom::sync::atomic::Ordering::{self, Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{AtomicU16, fence};
use std::cell::Cell;
pub use step::Step;

/// Words that a model may use.
const WORDS: usize = 32;

loom::lazy_static! {
    // One set for each execution of a model, all zero: loom makes and drops it.
    static ref MEMORY: [AtomicU16; WORDS] = std::array::from_fn(|_| AtomicU16::new(0));
}

std::thread_local! {
    // Loom runs the threads of a model as coroutines on the thread of the test.
    static TAKEN_OUT: Cell<Option<Step>> = const { Cell::new(None) };
}

/// Run `body` as if `step` were not there.
pub fn taking_out(step: Step, body: impl FnOnce()) {
    TAKEN_OUT.set(Some(step));
    body();
}

fn unless_taken_out(step: Step, ordering: Ordering) -> Ordering {
    if TAKEN_OUT.get() == Some(step) { Relaxed } else { ordering }
}

/// A 16-bit word, by its place in the model's memory.
#[derive(Clone, Copy)]
pub struct Word16(pub usize);

impl Word16 {
    pub fn load(self) -> u16 {
        MEMORY[self.0].load(Relaxed)
    }

    pub fn store(self, value: u16) {
        MEMORY[self.0].store(value, Relaxed);
    }

    pub fn load_acquire(self, step: Step) -> u16 {
        MEMORY[self.0].load(unless_taken_out(step, Acquire))
    }

    pub fn store_release(self, value: u16, step: Step) {
        MEMORY[self.0].store(value, unless_taken_out(step, Release));
    }
}

pub fn full_fence(step: Step) {
    if TAKEN_OUT.get() != Some(step) {
        fence(SeqCst);
    }
}
