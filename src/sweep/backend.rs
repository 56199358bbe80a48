//! The backend of one cell: ours, or the plain one.

#![forbid(unsafe_code)]

use super::{Direction, SweepError, Task};
use crate::bridge::Bridge;
use crate::config::BridgeKeys;
use crate::config::{ForwardMode, Offer, PollMode, PortKind, PortSpec, RunConfig, VhostSpec};
#[cfg(feature = "reference")]
use crate::reference::{Reference, ReferenceConfig, ReferenceMode};
use std::path::PathBuf;
use std::time::Duration;

/// A backend that runs.
pub(super) enum Backend {
    Ours(Bridge),
    #[cfg(feature = "reference")]
    Reference(Reference),
}

impl Backend {
    pub fn start(task: &Task, sockets: &[PathBuf], cpu: Option<usize>) -> Result<Self, SweepError> {
        #[cfg(feature = "reference")]
        if task.against.is_some() {
            let mode = match task.direction {
                Direction::ToGuest => ReferenceMode::TxOnly,
                Direction::FromGuest => ReferenceMode::RxOnly,
                Direction::Between => ReferenceMode::Io,
            };
            let (size, mergeable) = (task.size, task.mergeable);
            let sockets = sockets.to_vec();
            let config = ReferenceConfig { sockets, mode, size, mergeable, cpu };
            return Ok(Backend::Reference(Reference::start(&config)?));
        }
        Ok(Backend::Ours(Bridge::start(&config(task, sockets, cpu))?))
    }

    /// End it. Its p10 of busy cycles a packet, if it counts them.
    pub fn stop(self) -> Option<u64> {
        match self {
            Backend::Ours(bridge) => bridge.stop().workers.first()?.cycles_per_packet_p10,
            #[cfg(feature = "reference")]
            Backend::Reference(reference) => {
                reference.stop();
                None
            }
        }
    }
}

fn config(task: &Task, sockets: &[PathBuf], cpu: Option<usize>) -> RunConfig {
    let port = |path: &PathBuf| PortSpec {
        name: format!("vhost:{}", path.display()),
        bridge: BridgeKeys::default(),
        kind: PortKind::Vhost(VhostSpec {
            path: path.clone(),
            client: false,
            queues: 1,
            offer: Offer { mrg_rxbuf: task.mergeable, ..Offer::ALL },
            mode: None,
            owner: None,
        }),
    };
    RunConfig {
        ports: sockets.iter().map(port).collect(),
        aging: Duration::from_mins(5),
        forward: match task.direction {
            Direction::ToGuest => ForwardMode::TxOnly,
            Direction::FromGuest => ForwardMode::RxOnly,
            Direction::Between => ForwardMode::Io,
        },
        size: task.size,
        workers: vec![cpu],
        burst: crate::packet::BURST,
        poll: PollMode::Adaptive,
        duration: None,
        stats_interval: None,
        json: false,
        control: None,
    }
}
