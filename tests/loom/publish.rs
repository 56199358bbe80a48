//! One side publishes, the other reads what was published.

use crate::ring::Ring;
use loom::thread;

/// The driver publishes two chains; the device looks twice.
pub fn avail() {
    let ring = Ring::new(0, false);
    let driver = thread::spawn(move || (0..2).for_each(|i| ring.make_available(i)));
    let mut next = 0;
    for _ in 0..2 {
        let idx = ring.device().load_avail_idx();
        ring.check_available(next, idx);
        next = idx;
    }
    driver.join().unwrap();
}

/// The device publishes two used entries; the driver looks twice.
pub fn used() {
    let ring = Ring::new(0, false);
    let device = thread::spawn(move || (0..2).for_each(|i| ring.make_used(i)));
    let mut next = 0;
    for _ in 0..2 {
        let idx = ring.driver().load_used_idx();
        ring.check_used(next, idx);
        next = idx;
    }
    device.join().unwrap();
}
