//! The eventfds of a sleeper, and its sleep in epoll (or in a read of the only one).

use loom::sync::{Condvar, Mutex};
use std::sync::Arc;

/// Up to eight level-triggered eventfds that one thread waits for.
#[derive(Clone)]
pub struct Doorbells(Arc<(Mutex<u8>, Condvar)>);

impl Doorbells {
    pub fn new() -> Self {
        Doorbells(Arc::new((Mutex::new(0), Condvar::new())))
    }

    /// Write to eventfd `n`.
    pub fn ring(&self, n: usize) {
        *self.0.0.lock().unwrap() |= 1 << n;
        self.0.1.notify_one();
    }

    /// Sleep in epoll until any is readable.
    pub fn wait(&self) {
        let mut rung = self.0.0.lock().unwrap();
        while *rung == 0 {
            rung = self.0.1.wait(rung).unwrap();
        }
    }

    /// Read them all, so that none is readable.
    pub fn clear(&self) {
        *self.0.0.lock().unwrap() = 0;
    }

    /// Wait, then clear.
    pub fn sleep(&self) {
        self.wait();
        self.clear();
    }
}
