//! Real guests: QEMU boots a kernel whose virtio driver we did not write. Counters and contents
//! are asserted, never rates: without KVM a guest runs as fast as the machine has time for it.

#[path = "../common/mod.rs"]
mod common;

mod host;
mod interfaces;
mod lifecycle;
mod memory;
mod migration;
mod queues;
mod relay;
mod restart;
mod scene;
mod sweep;
mod testpmd;
mod two_guests;
mod vm;
