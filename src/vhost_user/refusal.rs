//! Why a message was refused, in the operator's words.
//!
//! Used by `handler`, which logs it in one line.

use super::{MAX_REGIONS, RingLost};
use crate::memory::MemoryError;
use crate::sys::with_causes;
use crate::virtio::StartError;
use std::io;

/// What a message does: nothing to report, or why it was refused.
pub(super) type Outcome<T = ()> = Result<T, Refusal>;

/// Why a message was refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("features {0:#x} were not offered")]
    Features(u64),
    #[error(
        "there is no ring {index}: the port has {queues} queue pair(s); \
         give it more with queues=, or the guest fewer"
    )]
    NoRing { index: u32, queues: u16 },
    #[error("{0} is not a ring size (a power of two from 2 to 32768)")]
    Size(u32),
    #[error("{0} is not an index of a split ring")]
    Base(u32),
    #[error("{0} is no MTU (68 to 65535)")]
    Mtu(u64),
    #[error("{0:#x} is no device status, which has 8 bits")]
    Status(u64),
    #[error("the fd cannot be made non-blocking")]
    Fd(#[source] io::Error),
    #[error("the fd is no eventfd, and is never signalled")]
    NoCall(#[source] io::Error),
    #[error("the fd is neither an eventfd nor a pipe, and may keep other fds open")]
    NoEvent,
    #[error("ring {0} cannot start")]
    Start(u16, #[source] StartError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error("the dirty log cannot be used")]
    Log(#[source] MemoryError),
    #[error("malformed, or without file descriptors (is the memory backend share=on?)")]
    Table,
    #[error("there are {MAX_REGIONS} memory regions already")]
    NoSlot,
    #[error("there is no such memory region")]
    NoRegion,
    #[error("not offered")]
    Unsupported,
    #[error(transparent)]
    Lost(#[from] RingLost),
}

impl Refusal {
    /// What it is counted as.
    pub fn reason(&self) -> &'static str {
        match self {
            Refusal::Features(_) => "features",
            Refusal::NoRing { .. } => "no_ring",
            Refusal::Size(_) | Refusal::Start(_, StartError::Size(_)) => "ring_size",
            Refusal::Base(_) => "ring_base",
            Refusal::Mtu(_) => "mtu",
            Refusal::Status(_) => "status",
            Refusal::Fd(_) | Refusal::NoEvent | Refusal::NoCall(_) => "fd",
            Refusal::Start(..) => "ring_address",
            Refusal::Memory(error) => error.reason(),
            Refusal::Log(_) => "log",
            Refusal::Table => "memory_table",
            Refusal::NoSlot => "memory_slots",
            Refusal::NoRegion => "memory_region",
            Refusal::Unsupported => "not_offered",
            Refusal::Lost(_) => "ring_lost",
        }
    }

    /// The refusal and its causes in one line.
    pub fn line(&self) -> String {
        with_causes(self)
    }
}
