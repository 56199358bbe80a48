//! One virtqueue as the control plane knows it: stopped here, or running at a worker.
//!
//! Promises: a ring runs exactly if it was kicked and nothing is missing; its indices survive
//! every stop and start. Used by `handler`.

use super::{Device, RingLost, Rings, features};
use crate::journal::{Journal, RingState};
use crate::memory::{Alarm, DirtyLog, GuestMemory};
use crate::virtio::{RingSetup, SplitRing, StartError};
use std::sync::Arc;

/// What all rings of a connection share.
pub(super) struct Context<'a, R> {
    pub device: &'a Device,
    pub workers: &'a R,
    /// Rings when the frontend truncates what it has shared.
    pub alarm: Arc<Alarm>,
    /// `None` until a table came, and after one that was refused.
    pub memory: Option<Arc<GuestMemory>>,
    /// Set by `SET_LOG_BASE`.
    pub log: Option<Arc<DirtyLog>>,
    /// Acknowledged virtio features.
    pub features: u64,
    /// Set by `NET_SET_MTU`.
    pub mtu: Option<u16>,
}

/// A ring that no worker has.
pub(super) struct Stopped {
    pub setup: RingSetup,
    /// `SET_VRING_KICK` came, with an fd or without: run as soon as nothing is missing.
    pub kicked: bool,
}

impl Stopped {
    /// Nothing is known of it but its name.
    fn new(journal: &Arc<Journal>, index: u16) -> Self {
        let setup = RingSetup { journal: Arc::clone(journal), index, ..RingSetup::default() };
        Stopped { setup, kicked: false }
    }
}

pub(super) struct Vring {
    index: u16,
    /// `None` while a worker runs the ring. Only a kicked ring runs.
    stopped: Option<Stopped>,
    /// How it was when it was last started.
    started: RingState,
}

impl Vring {
    pub fn new(device: &Device, index: u16) -> Self {
        let stopped = Some(Stopped::new(&device.journal, index));
        Vring { index, stopped, started: RingState::default() }
    }

    /// What the journal should know of it.
    pub fn state(&self) -> RingState {
        match &self.stopped {
            Some(ring) => {
                let (enabled, entries) = (ring.setup.enabled, ring.setup.size);
                RingState { enabled, entries, ..RingState::default() }
            }
            None => self.started,
        }
    }

    /// The ring, which no worker runs from now on.
    pub fn take_back<R: Rings>(&mut self, cx: &Context<R>) -> Result<&mut Stopped, RingLost> {
        let stopped = match self.stopped.take() {
            Some(stopped) => stopped,
            None => match cx.workers.stop(self.index) {
                Ok(ring) => Stopped { setup: ring.stop(), kicked: true },
                Err(lost) => {
                    // Never ask for it again.
                    self.stopped = Some(Stopped::new(&cx.device.journal, self.index));
                    return Err(lost);
                }
            },
        };
        Ok(self.stopped.insert(stopped))
    }

    /// The ring stops and forgets its kick. Returns the index of the next chain to take.
    pub fn halt<R: Rings>(&mut self, cx: &Context<R>) -> Result<u16, RingLost> {
        let ring = self.take_back(cx)?;
        ring.kicked = false;
        ring.setup.kick = None;
        Ok(ring.setup.base)
    }

    /// The ring stops and forgets everything.
    pub fn reset<R: Rings>(&mut self, cx: &Context<R>) -> Result<(), RingLost> {
        let fresh = Stopped::new(&cx.device.journal, self.index);
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
        ring.setup.mtu = cx.mtu;
        ring.setup.log.clone_from(&cx.log);
        match SplitRing::start(ring.setup, Arc::clone(memory), cx.features) {
            Ok(started) => {
                let (enabled, entries) = (started.enabled(), started.size());
                self.started = RingState { running: true, enabled, entries, broken: false };
                cx.device.journal.mended(self.index);
                cx.workers.start(self.index, Box::new(started));
                Ok(())
            }
            Err((mut setup, error)) => {
                setup.log = None;
                self.stopped = Some(Stopped { setup, kicked: true });
                Err(error)
            }
        }
    }
}

fn ready(ring: &Stopped) -> bool {
    ring.kicked && ring.setup.size != 0 && ring.setup.addresses.is_some()
}
