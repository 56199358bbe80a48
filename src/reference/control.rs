//! The control plane of the reference backend: one `VhostUserDaemon` a socket.
//!
//! Promises: hands the daemon's rings to the polling thread as soon as one is enabled, takes
//! them back when the connection ends, and looks for the end of the program every 20 ms.

use super::datapath::{Memory, PortEvent, Rings};
use super::{ReferenceError, Shared};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use vhost::vhost_user::{Listener, VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost_user_backend::{VhostUserBackendMut, VhostUserDaemon, VringMutex};
use virtio_bindings::virtio_config::{VIRTIO_F_IN_ORDER, VIRTIO_F_VERSION_1};
use virtio_bindings::virtio_net::VIRTIO_NET_F_MRG_RXBUF;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{
    EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier,
};
use vmm_sys_util::poll::PollContext;

const PATIENCE: Duration = Duration::from_millis(20);
const QUEUES: usize = 2;
const MAX_RING: usize = 32768;

/// What the daemon asks about the device.
pub(super) struct Device {
    port: usize,
    features: u64,
    shared: Arc<Shared>,
    events: Sender<PortEvent>,
    attached: bool,
    memory: Memory,
    exit: Option<(EventConsumer, EventNotifier)>,
}

impl Device {
    pub(super) fn new(
        port: usize,
        mergeable: bool,
        shared: &Arc<Shared>,
        events: Sender<PortEvent>,
    ) -> Result<Self, ReferenceError> {
        // In order it is: one chain after the other. It saves guests work, ours or not.
        let mut features = 1 << VIRTIO_F_VERSION_1
            | 1 << VIRTIO_F_IN_ORDER
            | 1 << VIRTIO_RING_F_INDIRECT_DESC
            | 1 << VIRTIO_RING_F_EVENT_IDX
            | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        if mergeable {
            features |= 1 << VIRTIO_NET_F_MRG_RXBUF;
        }
        let exit = Some(new_event_consumer_and_notifier(EventFlag::NONBLOCK)?);
        let memory = Memory::new(GuestMemoryMmap::new());
        let shared = shared.clone();
        Ok(Device { port, features, shared, events, attached: false, memory, exit })
    }
}

impl VhostUserBackendMut for Device {
    type Bitmap = ();
    type Vring = VringMutex;

    fn num_queues(&self) -> usize {
        QUEUES
    }

    fn max_queue_size(&self) -> usize {
        MAX_RING
    }

    fn features(&self) -> u64 {
        self.features
    }

    fn acked_features(&mut self, features: u64) {
        self.shared.features.store(features, Ordering::Relaxed);
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK
    }

    fn set_event_idx(&mut self, _enabled: bool) {}

    fn update_memory(&mut self, _memory: Memory) -> io::Result<()> {
        // The rings hold the same atomic, and load it anew for each burst.
        Ok(())
    }

    fn exit_event(&self, _thread_index: usize) -> Option<(EventConsumer, EventNotifier)> {
        let (consumer, notifier) = self.exit.as_ref()?;
        Some((consumer.try_clone().ok()?, notifier.try_clone().ok()?))
    }

    /// Called when a ring becomes enabled, and for each kick. The first time is when the
    /// polling thread gets the rings; it needs no kicks.
    fn handle_event(
        &mut self,
        _device_event: u16,
        _evset: EventSet,
        vrings: &[VringMutex],
        _thread_id: usize,
    ) -> io::Result<()> {
        if !self.attached {
            self.attached = true;
            let rings = Rings { rings: vrings.to_vec(), memory: self.memory.clone() };
            let event = PortEvent { port: self.port, rings: Some(rings) };
            self.events.send(event).map_err(io::Error::other)?;
        }
        Ok(())
    }
}

type Daemon = VhostUserDaemon<Arc<Mutex<Device>>>;

/// Listen on `path` and serve one connection in a thread of its own.
pub(super) fn serve(
    path: &Path,
    device: Device,
    stop: Arc<AtomicBool>,
) -> Result<JoinHandle<()>, ReferenceError> {
    let listener = Listener::new(path, true)
        .map_err(|e| ReferenceError::Listen { path: path.into(), reason: e.to_string() })?;
    let memory = device.memory.clone();
    let gone = (PortEvent { port: device.port, rings: None }, device.events.clone());
    let daemon = Daemon::new("reference-ctl".into(), Arc::new(Mutex::new(device)), memory)
        .map_err(|e| ReferenceError::Device(e.to_string()))?;
    let thread = thread::Builder::new().name("reference-acc".into()).spawn(move || {
        if let Err(reason) = serve_one(listener, daemon, &stop) {
            tracing::warn!("reference backend: {reason}");
        }
        let (event, events) = gone;
        let _ = events.send(event);
    })?;
    Ok(thread)
}

fn serve_one(mut listener: Listener, mut daemon: Daemon, stop: &AtomicBool) -> Result<(), String> {
    let poll = PollContext::<u32>::new().map_err(|e| e.to_string())?;
    poll.add(&listener, 0).map_err(|e| e.to_string())?;
    // The daemon's accept cannot be interrupted, so it is only called when it will not wait.
    while poll.wait_timeout(PATIENCE).map_err(|e| e.to_string())?.iter().next().is_none() {
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
    }
    daemon.start(&mut listener).map_err(|e| e.to_string())?;
    let handle = daemon.shutdown_handle();
    let result = thread::scope(|scope| {
        let waiting = scope.spawn(|| daemon.wait());
        while !waiting.is_finished() {
            if stop.load(Ordering::Relaxed) {
                handle.iter().for_each(vhost_user_backend::ShutdownHandle::shutdown);
            }
            thread::sleep(PATIENCE);
        }
        waiting.join()
    });
    match result {
        // A frontend that hangs up in the middle of a message is still one that hangs up.
        Ok(Err(error)) if !is_hangup(&error) => Err(error.to_string()),
        _ => Ok(()),
    }
}

fn is_hangup(error: &vhost_user_backend::Error) -> bool {
    use vhost::vhost_user::Error::{Disconnected, PartialMessage};
    matches!(error, vhost_user_backend::Error::HandleRequest(Disconnected | PartialMessage))
}
