//! The ports of a bridge, by number.
//!
//! Promises: a port that comes gets the lowest free slot; while it is opened or closed, which
//! takes a while and is done without the lock, its slot, name and files are taken. Used under
//! the bridge's lock.

#![forbid(unsafe_code)]

use super::{AddError, RemoveError};
use crate::config::PortSpec;
use crate::config::files::Files;
use crate::control::{NicPort, VhostPort};
use crate::forward::{MAX_PORTS, PortId};
use crate::stats::PortCounters;

/// A port.
#[derive(Debug)]
pub struct Slot {
    /// What was asked for.
    pub spec: PortSpec,
    /// What is counted.
    pub counters: PortCounters,
    /// How far it is.
    pub phase: Phase,
}

/// How far a port is.
#[derive(Debug)]
pub enum Phase {
    /// On its way.
    Opening,
    /// Here; with the threads that it needs.
    Open(Threads),
    /// On its way out.
    Closing,
}

/// The threads that a port has of its own.
#[derive(Debug, Default)]
pub enum Threads {
    /// None.
    #[default]
    None,
    /// Its sessions.
    Vhost(VhostPort),
    /// Who watches its interface.
    Nic(NicPort),
}

impl Threads {
    /// End them. False if one hangs.
    pub fn stop(self) -> bool {
        match self {
            Threads::Vhost(vhost) => vhost.stop(),
            Threads::Nic(nic) => {
                nic.stop();
                true
            }
            Threads::None => true,
        }
    }
}

/// All ports.
#[derive(Debug, Default)]
pub struct Slots(Vec<Option<Slot>>);

impl Slots {
    /// The ports there are, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (PortId, &Slot)> {
        self.0.iter().enumerate().filter_map(|(port, slot)| Some((port, slot.as_ref()?)))
    }

    /// The ports there are.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Slot> {
        self.0.iter_mut().flatten()
    }

    /// Port `port`, if it is there.
    pub fn get_mut(&mut self, port: PortId) -> Option<&mut Slot> {
        self.0.get_mut(port)?.as_mut()
    }

    /// Can packets be sent to `port`?
    pub fn is_open(&self, port: PortId) -> bool {
        let slot = self.0.get(port).and_then(Option::as_ref);
        slot.is_some_and(|slot| matches!(slot.phase, Phase::Open(_)))
    }

    /// The lowest free number.
    pub fn free(&self) -> Result<PortId, AddError> {
        let free = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        if free < MAX_PORTS { Ok(free) } else { Err(AddError::Full) }
    }

    /// `port`, which is free, is taken.
    pub fn put(&mut self, port: PortId, slot: Slot) {
        if self.0.len() <= port {
            self.0.resize_with(port + 1, || None);
        }
        self.0[port] = Some(slot);
    }

    /// `port` is free.
    pub fn take(&mut self, port: PortId) -> Option<Slot> {
        self.0.get_mut(port)?.take()
    }

    /// Nobody has the name or a file of `spec`.
    pub fn check(&self, spec: &PortSpec) -> Result<(), AddError> {
        let mut files = Files::default();
        for (_, slot) in self.iter() {
            if slot.spec.name == spec.name {
                return Err(AddError::Name(spec.name.clone()));
            }
            // They were checked when they came.
            let _ = files.take(&slot.spec);
        }
        Ok(files.take(spec)?)
    }

    /// The port called `name`; where that is the name of several or of none, the port of that
    /// number.
    pub fn find(&self, name: &str) -> Result<PortId, RemoveError> {
        let named: Vec<_> =
            self.iter().filter(|(_, s)| s.spec.name == name).map(|(port, _)| port).collect();
        let number = || name.parse().ok().filter(|n| self.iter().any(|(port, _)| port == *n));
        match named[..] {
            [port] => Ok(port),
            [] => number().ok_or_else(|| RemoveError::NoPort(name.into())),
            _ => Err(RemoveError::Several { name: name.into(), ports: named }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::port;
    use crate::journal::Journal;
    use std::sync::Arc;

    fn add(slots: &mut Slots, spec: &str) -> PortId {
        let (port, spec) = (slots.free().unwrap(), port::parse(spec).unwrap());
        let journal = Arc::new(Journal::new(&spec.name, &Arc::default()));
        let counters = PortCounters::new(port, &journal, 1);
        slots.put(port, Slot { spec, counters, phase: Phase::Opening });
        port
    }

    #[test]
    fn the_lowest_free_slot_is_the_next() {
        let mut slots = Slots::default();
        assert_eq!([0, 1, 2].map(|_| add(&mut slots, "null")), [0, 1, 2]);
        assert!(slots.take(1).is_some() && slots.take(1).is_none());
        assert_eq!([0, 1].map(|_| add(&mut slots, "null")), [1, 3]);
        (4..MAX_PORTS).for_each(|port| assert_eq!(add(&mut slots, "null"), port));
        let full = slots.free().unwrap_err().to_string();
        assert_eq!(full, "there are 1024 ports, and no more fit; delete one first");
    }

    #[test]
    fn names_and_files_are_taken_once() {
        let mut slots = Slots::default();
        add(&mut slots, "vhost:/tmp/a,queues=2");
        let refused = |spec| slots.check(&port::parse(spec).unwrap()).unwrap_err().to_string();
        assert_eq!(refused("vhost:/tmp/a"), "there is a port vhost:/tmp/a already");
        let twice = "/tmp/a is used twice; each use needs a file of its own";
        assert_eq!(refused("vhost:/tmp/./a"), twice);
        assert_eq!(refused("pcap:/tmp/in,out=/tmp/a"), twice);
        slots.check(&port::parse("pcap:/tmp/in,out=/tmp/b").unwrap()).unwrap();
    }

    #[test]
    fn a_port_is_found_by_name_or_number() {
        let mut slots = Slots::default();
        for spec in ["null", "vhost:/tmp/a", "null"] {
            add(&mut slots, spec);
        }
        assert_eq!(slots.find("vhost:/tmp/a").unwrap(), 1);
        assert_eq!(slots.find("2").unwrap(), 2);
        let refused = |name| slots.find(name).unwrap_err().to_string();
        assert_eq!(refused("null"), "several ports are called null; give the number: 0, 2");
        for name in ["3", "-1", "vhost:/tmp/b"] {
            assert_eq!(refused(name), format!("there is no port {name}; see ctl ports"));
        }
    }
}
