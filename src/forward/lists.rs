//! Outputs of a burst whose packets may have several: for each output the packets that go there.
//!
//! Promises: the packets of a list are in the order of the burst; to begin anew costs a step a
//! list that was used. Filled by forwarders that answer [`super::Output::Listed`], sent by the
//! worker. Allocates only for an output that it has not seen before.

#![forbid(unsafe_code)]

use super::bridge::TagEdit;
use super::{MAX_PORTS, PortId};
use crate::counters::Reason;
use crate::packet::BURST;
use arrayvec::ArrayVec;

/// Packets for one output, in one form.
#[derive(Debug)]
pub struct List {
    /// The port.
    pub port: PortId,
    /// What is done to their tags on the way there.
    pub edit: TagEdit,
    /// Their numbers.
    pub which: ArrayVec<u8, BURST>,
}

/// All lists of a burst, and what is in none.
#[derive(Debug)]
pub struct Lists {
    all: Vec<List>,
    /// How many of them are of this burst.
    used: usize,
    /// The list of a port's unchanged packets, plus one; 0 for none.
    of_port: Box<[u16]>,
    lost: Vec<(Reason, u64)>,
}

impl Default for Lists {
    fn default() -> Self {
        Self::new()
    }
}

impl Lists {
    /// None.
    pub fn new() -> Self {
        Lists { all: Vec::new(), used: 0, of_port: vec![0; MAX_PORTS].into(), lost: Vec::new() }
    }

    /// Begin another burst.
    #[inline]
    pub fn clear(&mut self) {
        for list in &mut self.all[..self.used] {
            self.of_port[list.port] = 0;
            list.which.clear();
        }
        self.used = 0;
        self.lost.clear();
    }

    /// Packet `i` goes to `port`; a packet once to each. Returns the number of the list.
    #[inline]
    pub fn add(&mut self, port: PortId, edit: TagEdit, i: u8) -> usize {
        let known = match edit {
            TagEdit::Keep => usize::from(self.of_port[port]).checked_sub(1),
            _ => self.all[..self.used].iter().position(|l| (l.port, l.edit) == (port, edit)),
        };
        let at = known.unwrap_or_else(|| self.begin(port, edit));
        self.all[at].which.push(i);
        at
    }

    /// Packet `i` goes where list `at` of this burst goes.
    #[inline]
    pub fn add_to(&mut self, at: usize, i: u8) {
        self.all[at].which.push(i);
    }

    fn begin(&mut self, port: PortId, edit: TagEdit) -> usize {
        let at = self.used;
        self.used += 1;
        match self.all.get_mut(at) {
            Some(list) => (list.port, list.edit) = (port, edit),
            None => self.all.push(List { port, edit, which: ArrayVec::new() }),
        }
        if edit == TagEdit::Keep {
            self.of_port[port] = self.used as u16;
        }
        at
    }

    /// A packet goes nowhere, for this reason.
    #[inline]
    pub fn lose(&mut self, reason: Reason) {
        match self.lost.iter_mut().find(|(lost, _)| *lost == reason) {
            Some((_, n)) => *n += 1,
            None => self.lost.push((reason, 1)),
        }
    }

    /// The lists of this burst.
    pub fn iter(&self) -> impl Iterator<Item = &List> {
        self.all[..self.used].iter()
    }

    /// What goes nowhere.
    pub fn lost(&self) -> &[(Reason, u64)] {
        &self.lost
    }
}
