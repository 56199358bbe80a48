//! What each message of a connection does.
//!
//! Promises: a message that concerns a running ring asks it back, changes it, and starts it
//! again if nothing is wrong. A message that is refused is logged in one line, and answered if
//! an answer was asked for; a memory table, an address or a size that is refused leaves the
//! rings it concerns stopped, anything else as they were. Called by the `vhost` crate for
//! decoded messages and by `session`.

use super::refusal::{Outcome, Refusal};
use super::vring::{Context, Stopped, Vring};
use super::{Device, MAX_REGIONS, Rings, features};
use crate::journal::{Event, RingState};
use crate::memory::{Alarm, DirtyLog, GuestMemory, RegionSpec};
use crate::sys::{bell, unix};
use crate::virtio::{RingAddresses, ring};
use crate::wire::{Mac, rarp};
use std::fs::File;
use std::io;
use std::sync::Arc;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use virtio_bindings::virtio_config::VIRTIO_CONFIG_S_FEATURES_OK;

/// Least MTU of IPv4 (RFC 791), and of a guest.
const LEAST_MTU: u16 = 68;

/// The state of one connection.
pub(super) struct Handler<'a, R> {
    cx: Context<'a, R>,
    rings: Vec<Vring>,
    /// Acknowledged protocol features.
    protocol: u64,
    /// The device status of virtio 1.2, 2.1, as the driver has set it.
    status: u8,
    /// The driver wanted features that were not offered.
    features_refused: bool,
    /// It has asked for the number of queues, and not gone on since.
    asked_queues: bool,
    /// The features that the journal was told of: with several queue pairs they come once for
    /// each, and again with each start of the driver.
    told_features: Option<u64>,
    /// The journal was told that there is no memory.
    told_no_memory: bool,
}

impl<'a, R: Rings> Handler<'a, R> {
    pub fn new(device: &'a Device, workers: &'a R, alarm: Arc<Alarm>) -> Self {
        let cx =
            Context { device, workers, alarm, memory: None, log: None, features: 0, mtu: None };
        let rings = (0..2 * device.queues).map(|index| Vring::new(device, index)).collect();
        Handler {
            cx,
            rings,
            protocol: 0,
            status: 0,
            features_refused: false,
            asked_queues: false,
            told_features: None,
            told_no_memory: false,
        }
    }

    /// Does the frontend know that it can ask for an answer to any message?
    pub fn answers(&self) -> bool {
        self.protocol & VhostUserProtocolFeatures::REPLY_ACK.bits() != 0
    }

    /// Why a frontend may have left without a word: QEMU does, and comes back for ever, when it
    /// has more queues than the port.
    pub fn why_it_left(&self) -> Option<String> {
        let queues = self.cx.device.queues;
        self.asked_queues.then(|| {
            format!(
                "it left when it heard that the port has {queues} queue pair(s): \
                 give the port as many as the guest has with queues="
            )
        })
    }

    /// Did the frontend truncate what it has shared?
    pub fn was_truncated(&self) -> bool {
        self.cx.alarm.has_rung()
    }

    /// The connection has ended: give everything back.
    pub fn finish(&mut self) {
        let journal = &self.cx.device.journal;
        for (index, mut ring) in self.rings.drain(..).enumerate() {
            // One that does not come back does not keep the others from it.
            if let Err(lost) = ring.take_back(&self.cx) {
                journal.tell(Event::Failure { text: lost.to_string() });
            }
            journal.ring(index as u16, RingState::default());
        }
        (self.cx.memory, self.cx.log) = (None, None);
    }

    /// A memory table came that the crate refused.
    pub fn refuse_table(&mut self) -> Result<()> {
        let done = self.replace_memory(Err(Refusal::Table));
        match self.answer("SET_MEM_TABLE", done) {
            Err(Error::ReqHandlerError(_)) => Ok(()),
            other => other,
        }
    }

    /// Tell what went wrong and make it the crate's kind of error: one that `session` survives,
    /// unless a ring is lost.
    fn answer(&self, request: &str, done: Outcome) -> Result<()> {
        self.tell_rings();
        match done {
            Ok(()) => Ok(()),
            Err(Refusal::Lost(lost)) => {
                let text = format!("{request}: {lost}");
                self.cx.device.journal.tell(Event::Failure { text });
                Err(Error::BackendInternalError)
            }
            Err(refusal) => {
                self.tell_refused(request, &refusal);
                Err(Error::ReqHandlerError(io::ErrorKind::InvalidInput.into()))
            }
        }
    }

    fn tell_refused(&self, request: &str, refusal: &Refusal) {
        let refused = Event::refused(request, refusal.reason(), refusal.line());
        self.cx.device.journal.tell(refused);
    }

    /// Tell the journal how the rings are, which knows what of it is news; before the message is
    /// answered, so that whoever has the answer can ask what it did.
    fn tell_rings(&self) {
        for (index, ring) in self.rings.iter().enumerate() {
            self.cx.device.journal.ring(index as u16, ring.state());
        }
    }

    /// `VHOST_USER_SET_STATUS`. 0 is the driver's reset: its rings stop until they are kicked
    /// again. They keep their indices, because `GET_VRING_BASE` may come before it or after it.
    pub fn set_status(&mut self, status: u64) -> Result<()> {
        let done = u8::try_from(status).map_err(|_| Refusal::Status(status)).and_then(|status| {
            self.status = status;
            if status == 0 { self.halt_all() } else { Ok(()) }
        });
        self.answer("SET_STATUS", done)
    }

    /// `VHOST_USER_GET_STATUS`: what was set, but for `FEATURES_OK` after features that were not
    /// offered.
    pub fn status(&self) -> u64 {
        let refused = if self.features_refused { VIRTIO_CONFIG_S_FEATURES_OK as u8 } else { 0 };
        u64::from(self.status & !refused)
    }

    /// `VHOST_USER_NET_SET_MTU`.
    pub fn set_mtu(&mut self, mtu: u64) -> Result<()> {
        let fits = u16::try_from(mtu).ok().filter(|mtu| *mtu >= LEAST_MTU);
        let done = fits.ok_or(Refusal::Mtu(mtu)).and_then(|mtu| {
            self.cx.device.journal.tell(Event::Mtu { mtu });
            self.take_all_back()?;
            self.cx.mtu = Some(mtu);
            self.start_all()
        });
        self.answer("NET_SET_MTU", done)
    }

    /// `VHOST_USER_SEND_RARP`: the guest of this MAC address has moved here, and says so.
    pub fn send_rarp(&mut self, mac: Mac) -> Result<()> {
        let done = self.cx.workers.inject(Arc::new(rarp(mac))).map_err(Refusal::from);
        self.answer("SEND_RARP", done)
    }

    fn ring(&mut self, index: u32) -> Outcome<(&mut Vring, &Context<'a, R>)> {
        let queues = self.cx.device.queues;
        let ring = self.rings.get_mut(index as usize).ok_or(Refusal::NoRing { index, queues })?;
        Ok((ring, &self.cx))
    }

    /// Ask ring `index` back, change it, start it again.
    fn change(&mut self, index: u32, edit: impl FnOnce(&mut Stopped)) -> Outcome {
        let (ring, cx) = self.ring(index)?;
        edit(ring.take_back(cx)?);
        ring.start(cx).map_err(|error| Refusal::Start(index as u16, error))
    }

    /// Transmit rings before the receive rings of their pairs: what a guest has sent still finds
    /// its receive ring, if that is where it goes.
    fn take_all_back(&mut self) -> Outcome {
        Ok(self.rings.iter_mut().rev().try_for_each(|ring| ring.take_back(&self.cx).map(drop))?)
    }

    /// Start every ring that can be; one that cannot does not keep the others from it.
    fn start_all(&mut self) -> Outcome {
        let mut first = Ok(());
        for index in 0..self.rings.len() {
            if let Err(error) = self.rings[index].start(&self.cx) {
                let refusal = Refusal::Start(index as u16, error);
                if first.is_ok() {
                    first = Err(refusal);
                } else {
                    self.tell_refused("restart", &refusal);
                }
            }
        }
        first
    }

    fn halt_all(&mut self) -> Outcome {
        Ok(self.rings.iter_mut().rev().try_for_each(|ring| ring.halt(&self.cx).map(drop))?)
    }

    fn reset_all(&mut self) -> Outcome {
        Ok(self.rings.iter_mut().try_for_each(|ring| ring.reset(&self.cx))?)
    }

    /// No ring runs in the old memory from here on, and none runs at all without a new one.
    fn replace_memory(&mut self, memory: Outcome<Arc<GuestMemory>>) -> Outcome {
        self.take_all_back()?;
        self.cx.memory = None;
        let memory = self.cx.memory.insert(memory?);
        let (regions, bytes) = (memory.regions(), memory.size());
        self.cx.device.journal.tell(Event::Memory { bytes, regions });
        self.start_all()
    }

    fn add_region(&mut self, spec: RegionSpec) -> Outcome {
        if let Some(same) = self.cx.memory.as_ref().and_then(|memory| memory.again(&spec)) {
            // No news for the rings.
            self.cx.memory = Some(same);
            return Ok(());
        }
        let memory = match &self.cx.memory {
            Some(memory) if memory.regions() >= MAX_REGIONS => return Err(Refusal::NoSlot),
            Some(memory) => memory.with(spec)?,
            None => GuestMemory::map(vec![spec], &self.cx.alarm)?,
        };
        self.replace_memory(Ok(memory))
    }

    fn remove_region(&mut self, at: VhostUserMemoryRegion) -> Outcome {
        let memory = self.cx.memory.as_ref();
        let before = memory.map_or(0, |memory| memory.regions());
        let rest = memory.and_then(|m| m.without(at.guest_phys_addr, at.memory_size, at.user_addr));
        let rest = rest.ok_or(Refusal::NoRegion)?;
        if rest.regions() == before {
            self.cx.memory = Some(rest);
            return Ok(());
        }
        self.replace_memory(Ok(rest))
    }

    fn change_features(&mut self, features: u64) -> Outcome {
        self.asked_queues = false;
        let unknown = features & !features::offered(self.cx.device);
        self.features_refused = unknown != 0;
        if unknown != 0 {
            return Err(Refusal::Features(unknown));
        }
        if self.told_features.replace(features) != Some(features) {
            let names = features::names(features);
            self.cx.device.journal.tell(Event::Features { features, names });
        }
        self.take_all_back()?;
        self.cx.features = features;
        self.start_all()
    }

    fn change_log(&mut self, at: &VhostUserLog, file: File) -> Outcome {
        let place = (at.mmap_offset, at.mmap_size);
        let log = DirtyLog::map(file, place, &self.cx.alarm).map_err(Refusal::Log)?;
        if self.cx.memory.as_ref().is_some_and(|memory| !log.covers(memory)) {
            let text =
                "the dirty log ends before the guest's memory: what lies behind is not logged";
            self.cx.device.journal.tell(Event::Note { text: text.into() });
        }
        self.take_all_back()?;
        self.cx.log = Some(log);
        // A ring that could not start before is not the log's fault, and its answer cannot say so.
        if let Err(refusal) = self.start_all() {
            self.tell_refused("restart", &refusal);
        }
        Ok(())
    }

    fn change_size(&mut self, index: u32, num: u32) -> Outcome {
        let fits = |size: &u16| size.is_power_of_two() && (2..=ring::MAX_RING).contains(size);
        let size = u16::try_from(num).ok().filter(fits);
        // A ring whose size is not the guest's must not run: 0 is none.
        self.change(index, |ring| ring.setup.size = size.unwrap_or(0))?;
        size.map(drop).ok_or(Refusal::Size(num))
    }

    fn change_call(&mut self, index: u8, fd: Option<File>) -> Outcome {
        let fd = non_blocking(fd)?;
        let mut rung = Ok(());
        self.change(index.into(), |ring| {
            ring.setup.call = fd;
            // What was signalled to the fd before it may never be looked at.
            rung = ring.setup.call.as_ref().map_or(Ok(()), bell::ring);
        })?;
        rung.map_err(Refusal::NoCall)
    }

    fn change_kick(&mut self, index: u8, fd: Option<File>) -> Outcome {
        let kick = non_blocking(fd)?;
        self.change(index.into(), |ring| {
            ring.setup.kick = kick;
            ring.kicked = true;
        })?;
        if self.cx.memory.is_none() && !self.told_no_memory {
            // QEMU shares regions that have an fd, and where none has one it says nothing.
            self.told_no_memory = true;
            let text = "the driver has started and no memory was shared with an fd: \
                        is the memory backend share=on?";
            self.cx.device.journal.tell(Event::Note { text: text.into() });
        }
        Ok(())
    }

    fn change_err(&mut self, index: u8, fd: Option<File>) -> Outcome {
        let err = non_blocking(fd)?;
        self.change(index.into(), |ring| ring.setup.err = err)
    }
}

/// Neither a worker nor this thread may ever wait for an fd of the frontend's, and no fd may keep
/// the frontend's own end of this connection open: we would never see it close.
fn non_blocking(fd: Option<File>) -> Outcome<Option<File>> {
    if let Some(fd) = &fd {
        if !unix::keeps_no_fds(fd).map_err(Refusal::Fd)? {
            return Err(Refusal::NoEvent);
        }
        unix::set_nonblocking(fd).map_err(Refusal::Fd)?;
    }
    Ok(fd)
}

fn region(at: &VhostUserMemoryRegion, file: File) -> RegionSpec {
    RegionSpec {
        guest: at.guest_phys_addr,
        size: at.memory_size,
        user: at.user_addr,
        offset: at.mmap_offset,
        file,
    }
}

impl<R: Rings> VhostUserBackendReqHandlerMut for Handler<'_, R> {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        let done = self.reset_all();
        self.answer("RESET_OWNER", done)
    }

    fn reset_device(&mut self) -> Result<()> {
        let done = self.reset_all();
        self.answer("RESET_DEVICE", done)
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(features::offered(self.cx.device))
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        let done = self.change_features(features);
        self.answer("SET_FEATURES", done)
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(features::protocol())
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        let unknown = features & !features::protocol().bits();
        if unknown != 0 {
            return self.answer("SET_PROTOCOL_FEATURES", Err(Refusal::Features(unknown)));
        }
        self.protocol = features;
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        self.asked_queues = true;
        Ok(self.cx.device.queues.into())
    }

    fn set_mem_table(
        &mut self,
        table: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        let specs = table.iter().zip(files).map(|(at, file)| region(at, file)).collect();
        // The new table is mapped before the rings are asked back: they pause for less.
        let memory = GuestMemory::map(specs, &self.cx.alarm).map_err(Refusal::from);
        let done = self.replace_memory(memory);
        self.answer("SET_MEM_TABLE", done).map(|()| None)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MAX_REGIONS as u64)
    }

    fn add_mem_region(
        &mut self,
        at: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<u64>> {
        let done = self.add_region(region(at, file));
        self.answer("ADD_MEM_REG", done).map(|()| None)
    }

    fn remove_mem_region(&mut self, at: &VhostUserSingleMemoryRegion) -> Result<()> {
        let done = self.remove_region(**at);
        self.answer("REM_MEM_REG", done)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let done = self.change_size(index, num);
        self.answer("SET_VRING_NUM", done)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        desc: u64,
        used: u64,
        avail: u64,
        log: u64,
    ) -> Result<()> {
        let addresses = RingAddresses { desc, avail, used };
        let logs = flags.contains(VhostUserVringAddrFlags::VHOST_VRING_F_LOG);
        let done = self.change(index, |ring| {
            ring.setup.addresses = Some(addresses);
            ring.setup.used_logged_at = logs.then_some(log);
        });
        self.answer("SET_VRING_ADDR", done)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let done = u16::try_from(base)
            .map_err(|_| Refusal::Base(base))
            .and_then(|base| self.change(index, |ring| ring.setup.base = base));
        self.answer("SET_VRING_BASE", done)
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let halted = self.ring(index).and_then(|(ring, cx)| Ok(ring.halt(cx)?));
        self.tell_rings();
        match halted {
            Ok(base) => Ok(VhostUserVringState::new(index, base.into())),
            // There is no answer that says no: the connection ends.
            Err(refusal) => {
                self.tell_refused("GET_VRING_BASE", &refusal);
                Err(Error::BackendInternalError)
            }
        }
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let done = self.change_kick(index, fd);
        self.answer("SET_VRING_KICK", done)
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let done = self.change_call(index, fd);
        self.answer("SET_VRING_CALL", done)
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let done = self.change_err(index, fd);
        self.answer("SET_VRING_ERR", done)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        // Asked back like for every other change: a flood of these waits for the worker then, and
        // not the worker's inbox for the flood.
        let done = self.change(index, |ring| ring.setup.enabled = enable);
        self.answer("SET_VRING_ENABLE", done)
    }

    fn set_log_base(&mut self, at: &VhostUserLog, file: File) -> Result<()> {
        let done = self.change_log(at, file);
        self.answer("SET_LOG_BASE", done).map_err(|error| match error {
            // The answer says where the log is, and none says that it is not.
            Error::ReqHandlerError(_) => Error::BackendInternalError,
            error => error,
        })
    }

    // The rest belongs to features that are not offered.

    fn get_config(&mut self, _: u32, _: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        Err(Error::InvalidOperation("GET_CONFIG"))
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        self.answer("SET_CONFIG", Err(Refusal::Unsupported))
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        self.answer("GPU_SET_SOCKET", Err(Refusal::Unsupported))
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("GET_SHARED_OBJECT"))
    }

    fn get_inflight_fd(&mut self, _: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        Err(Error::InvalidOperation("GET_INFLIGHT_FD"))
    }

    fn set_inflight_fd(&mut self, _: &VhostUserInflight, _: File) -> Result<()> {
        self.answer("SET_INFLIGHT_FD", Err(Refusal::Unsupported))
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        Err(Error::InvalidOperation("SET_DEVICE_STATE_FD"))
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("CHECK_DEVICE_STATE"))
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(Error::InvalidOperation("GET_SHMEM_CONFIG"))
    }
}
