//! One virtqueue as the control plane knows it: stopped here, or running at a worker.
//!
//! Promises: a ring runs exactly if it was kicked and nothing is missing; its indices survive
//! every stop and start. Used by `handler`.

use super::{Device, RingLost, Rings, features};
use crate::memory::GuestMemory;
use crate::virtio::{RingSetup, SplitRing, StartError};
use std::sync::Arc;

/// What all rings of a connection share.
pub(super) struct Context<'a, R> {
    pub device: &'a Device,
    pub workers: &'a R,
    /// `None` until a table came, and after one that was refused.
    pub memory: Option<Arc<GuestMemory>>,
    /// Acknowledged virtio features.
    pub features: u64,
}

/// A ring that no worker has.
pub(super) struct Stopped {
    pub setup: RingSetup,
    /// `SET_VRING_KICK` came, with an fd or without: run as soon as nothing is missing.
    pub kicked: bool,
}

impl Stopped {
    /// Nothing is known of it but its name.
    fn new(label: &Arc<str>) -> Self {
        let setup = RingSetup { label: Arc::clone(label), ..RingSetup::default() };
        Stopped { setup, kicked: false }
    }
}

pub(super) struct Vring {
    index: u16,
    /// The port's name and ours, for log lines.
    label: Arc<str>,
    /// `None` while a worker runs the ring. Only a kicked ring runs.
    stopped: Option<Stopped>,
    /// Its start was logged; restarts are not news.
    announced: bool,
}

impl Vring {
    pub fn new(device: &Device, index: u16) -> Self {
        let label = format!("{}: ring {index}", device.name).into();
        let stopped = Some(Stopped::new(&label));
        Vring { index, label, stopped, announced: false }
    }

    /// The ring, which no worker runs from now on.
    pub fn take_back<R: Rings>(&mut self, cx: &Context<R>) -> Result<&mut Stopped, RingLost> {
        let stopped = match self.stopped.take() {
            Some(stopped) => stopped,
            None => match cx.workers.stop(self.index) {
                Ok(ring) => Stopped { setup: ring.stop(), kicked: true },
                Err(lost) => {
                    // Never ask for it again.
                    self.stopped = Some(Stopped::new(&self.label));
                    return Err(lost);
                }
            },
        };
        Ok(self.stopped.insert(stopped))
    }

    /// The ring stops and forgets its kick. Returns the index of the next chain to take.
    pub fn halt<R: Rings>(&mut self, cx: &Context<R>) -> Result<u16, RingLost> {
        self.announced = false;
        let ring = self.take_back(cx)?;
        ring.kicked = false;
        ring.setup.kick = None;
        Ok(ring.setup.base)
    }

    /// The ring stops and forgets everything.
    pub fn reset<R: Rings>(&mut self, cx: &Context<R>) -> Result<(), RingLost> {
        self.announced = false;
        let fresh = Stopped::new(&self.label);
        *self.take_back(cx)? = fresh;
        Ok(())
    }

    /// Hand the ring to its worker, if it was kicked and nothing is missing.
    ///
    /// # Errors
    /// Something is there, but wrong. The ring stays stopped until that is replaced.
    pub fn start<R: Rings>(&mut self, cx: &Context<R>) -> Result<(), StartError> {
        let Some(mut ring) = self.stopped.take_if(|ring| ready(ring)) else { return Ok(()) };
        let Some(memory) = &cx.memory else {
            self.stopped = Some(ring);
            return Ok(());
        };
        // Without the feature there is no message to enable a ring with.
        ring.setup.enabled |= cx.features & features::PROTOCOL_FEATURES == 0;
        match SplitRing::start(ring.setup, Arc::clone(memory), cx.features) {
            Ok(started) => {
                self.announce(&started);
                cx.workers.start(self.index, Box::new(started));
                Ok(())
            }
            Err((setup, error)) => {
                self.stopped = Some(Stopped { setup, kicked: true });
                Err(error)
            }
        }
    }

    fn announce(&mut self, ring: &SplitRing) {
        let (label, size) = (&self.label, ring.size());
        let enabled = if ring.enabled() { ", enabled" } else { "" };
        if self.announced {
            tracing::debug!("{label} started again, {size} entries{enabled}");
        } else {
            tracing::info!("{label} started, {size} entries{enabled}");
        }
        self.announced = true;
    }
}

fn ready(ring: &Stopped) -> bool {
    ring.kicked && ring.setup.size != 0 && ring.setup.addresses.is_some()
}
