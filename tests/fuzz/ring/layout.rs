//! Where a ring lies.

use crate::world::{USER, place};
use ringbridge::virtio::RingAddresses;

/// Places of a ring's areas in the file, and how the device is told of them.
#[derive(Clone, Copy)]
pub struct Layout {
    pub size: u16,
    pub desc: usize,
    pub avail: usize,
    pub used: usize,
    pub addresses: RingAddresses,
}

impl Layout {
    /// Areas at these guest addresses. They may be anywhere: the device refuses what is not right.
    pub fn new(size: u16, [desc, avail, used]: [u64; 3]) -> Self {
        let at = |guest| place(guest).map_or(0, |(at, _)| at);
        let [d, a, u] = [desc, avail, used].map(|guest| guest.wrapping_add(USER));
        let addresses = RingAddresses { desc: d, avail: a, used: u };
        Layout { size, desc: at(desc), avail: at(avail), used: at(used), addresses }
    }

    /// Offsets and bytes of descriptor table, avail and used ring.
    pub fn areas(&self) -> [(usize, usize); 3] {
        let n = usize::from(self.size);
        [(self.desc, 16 * n), (self.avail, 6 + 2 * n), (self.used, 6 + 8 * n)]
    }

    /// No area lies over another one of these two rings.
    pub fn apart(&self, other: &Self) -> bool {
        let all = [self.areas(), other.areas()].concat();
        let apart = |a: &(usize, usize), b: &(usize, usize)| a.0 + a.1 <= b.0 || b.0 + b.1 <= a.0;
        all.iter().enumerate().all(|(i, a)| all[..i].iter().all(|b| apart(a, b)))
    }
}
