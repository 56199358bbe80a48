//! ringbridge: a vhost-user network backend.
//!
//! Virtual machines (QEMU, cloud-hypervisor, DPDK virtio-user) plug into it over unix sockets;
//! it maps their memory, services their split virtqueues in bursts, and moves packets between
//! its ports. The library is what the binary is made of, and the frontend driver and the
//! reference backend that its tests and benches use; its API follows the binary's needs and
//! promises no stability.
//!
//! ```text
//!  guest A tx ring ──▶ RxQueue ──▶ Burst ──▶ Forwarder ──▶ TxQueue ──▶ guest B rx ring
//!                      (port A)    ≤ 64      names an      (port B)
//!                                  packets   output each
//! ```
//!
//! One worker thread runs this to completion, burst by burst ([`worker`]), with no allocation
//! and no packet pool in between. A packet's payload is copied once: its *head* (at most 192
//! bytes) to private memory, where safe code may parse and rewrite it, its *tail* straight
//! from where it lies to where it goes ([`packet`]).
//!
//! # Layers
//!
//! Imports point down only:
//!
//! ```text
//! main → cli, run, ctl, guest, sweep, plot, sys  arguments → checked config → what they ask for
//! cli → ctl (requests), guest, plot (arguments), frontend (options), packet (limits), sys
//! guest → frontend, sys
//! sweep → bridge, frontend, reference, plot, packet, sys
//! run → ctl, bridge, sys
//! ctl → bridge, sys                      the control socket, both ends
//! bridge → control, worker, port, forward, stats, packet, sys
//! control → vhost_user, worker, port, virtio, sys sockets; interfaces; threads; who runs what
//! worker → port, forward, stats, virtio, packet, arch, sys
//! port → virtio (vhost port only), offload, packet, wire, sys (interfaces)
//! forward → packet, wire, arch (the clock)
//! vhost_user → virtio, memory, wire, sys messages of one session
//! frontend → virtio (ordering, limits), packet (limits), arch, sys
//! reference → virtio (header length), packet, wire, arch, sys
//! virtio → memory, offload, packet, wire, sys (bell), arch
//! offload ↔ packet; offload → wire
//! packet, sys, memory → arch
//! config → packet, sys (limits)
//! counters, journal, arch, wire, plot → nothing
//! ```
//!
//! `config`, `counters` and `journal` are everybody's and not repeated. `forward` never sees a queue,
//! `virtio` never a socket. The `vhost` crate is known to `vhost_user`, to `frontend::session`
//! for the other end of the wire, and to `reference`. Only `arch` knows the instruction set.
//!
//! # Laws of guest memory
//!
//! 1. Never a Rust reference into guest memory: its bytes are touched by the routines of
//!    [`arch`] only (but for the reference backend, which is made of other crates).
//! 2. Each guest value is read once into a local, checked, and the local is used.
//! 3. A guest's mistake completes its chain with length 0 and is counted by reason
//!    ([`counters::Reason`]); where the ring itself lies, that ring alone stops.
//! 4. A whole range is validated before its first byte is written.
//! 5. Fds are owned from the moment they arrive.
//! 6. A frontend is as little trusted as a guest: [`memory`] is checked before it is mapped, and
//!    a file that is truncated after that ends the frontend's session, nothing else.
//!
//! # Ordering
//!
//! The ordered accesses of the ring protocol are in one file, [`virtio::order`], each named
//! for its step and saying what it pairs with on the other side; the loom models compile that
//! file as it is. A ring's used order equals its avail order, whatever was negotiated, so a
//! frontend can restart a killed backend from the used index.

pub mod arch;
pub mod bridge;
pub mod cli;
pub mod config;
pub mod control;
pub mod counters;
pub mod ctl;
pub mod forward;
pub mod frontend;
pub mod guest;
pub mod journal;
pub mod memory;
pub mod offload;
pub mod packet;
pub mod plot;
pub mod port;
#[cfg(feature = "reference")]
pub mod reference;
pub mod run;
pub mod stats;
pub mod sweep;
pub mod sys;
pub mod vhost_user;
pub mod virtio;
pub mod wire;
pub mod worker;
