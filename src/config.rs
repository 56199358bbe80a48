//! Checked configuration: what `cli` makes of the command line, and `run` and `sweep` go by;
//! and how a port is specified, on the command line and while a bridge runs.
//!
//! Promises: a value of these types is valid in itself (sizes in range, CPUs that exist, no
//! path twice). Knows no flags and prints nothing.

#![forbid(unsafe_code)]

mod bridge;
pub mod files;
pub mod port;
pub mod values;

pub use bridge::{BridgeKeys, Vlan};

use crate::sys::packet_socket::RingSize;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::Duration;

/// A port as the operator asked for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortSpec {
    /// Its name in tables and JSON: the specification up to the first comma.
    pub name: String,
    /// What it is.
    pub kind: PortKind,
    /// What it is to a learning bridge.
    pub bridge: BridgeKeys,
}

/// The kinds of port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortKind {
    /// A vhost-user socket.
    Vhost(VhostSpec),
    /// Packets from a file, and to one.
    Pcap(PcapSpec),
    /// A TAP interface.
    Tap(TapSpec),
    /// Any interface, by packet sockets.
    AfPacket(AfPacketSpec),
    /// Receives nothing, discards what it is sent.
    Null,
}

/// A vhost-user port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VhostSpec {
    /// The socket.
    pub path: PathBuf,
    /// Connect to the socket instead of listening on it, and keep trying.
    pub client: bool,
    /// Queue pairs offered.
    pub queues: u16,
    /// Features that are offered unless they are switched off.
    pub offer: Offer,
    /// Permissions of the socket file.
    pub mode: Option<u32>,
    /// Owner of the socket file: user and group id.
    pub owner: Option<(u32, Option<u32>)>,
}

/// Features that a port offers, whoever connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Mergeable receive buffers.
    pub mrg_rxbuf: bool,
    /// Checksums that somebody else makes, in both directions.
    pub csum: bool,
    /// TCP packets that somebody else cuts, in both directions; not without `csum`.
    pub tso: bool,
}

impl Offer {
    /// All there are.
    pub const ALL: Offer = Offer { mrg_rxbuf: true, csum: true, tso: true };
}

/// A pcap port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PcapSpec {
    /// File to receive from.
    pub input: PathBuf,
    /// File to send to; without one, what is sent is discarded and counted as sent.
    pub output: Option<PathBuf>,
    /// Start over at the end of the input.
    pub repeat: bool,
    /// Packets a second; as fast as they are taken, if it is not given.
    pub rate: Option<u64>,
}

/// A TAP port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TapSpec {
    /// The interface; it is made if it is not there.
    pub interface: String,
    /// Queues that the host spreads its flows over.
    pub queues: u16,
    /// The number of an open fd of the interface, instead of opening it.
    pub fd: Option<RawFd>,
}

/// A port of packet sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AfPacketSpec {
    /// The interface.
    pub interface: String,
    /// Receive rings that flows are spread over.
    pub queues: u16,
    /// How large each ring is.
    pub ring: RingSize,
}

impl PortKind {
    /// Which kind this is, as it is written.
    pub fn name(&self) -> &'static str {
        match self {
            PortKind::Vhost(_) => "vhost",
            PortKind::Pcap(_) => "pcap",
            PortKind::Tap(_) => "tap",
            PortKind::AfPacket(_) => "af_packet",
            PortKind::Null => "null",
        }
    }

    /// How many queues it has in each direction.
    pub fn queues(&self) -> u16 {
        match self {
            PortKind::Vhost(vhost) => vhost.queues,
            PortKind::Tap(tap) => tap.queues,
            PortKind::AfPacket(socket) => socket.queues,
            PortKind::Pcap(_) | PortKind::Null => 1,
        }
    }
}

/// Forwarding modes, with testpmd's meanings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForwardMode {
    /// To the paired port, untouched.
    Io,
    /// To the paired port, with the port's own source and a fixed destination MAC.
    Mac,
    /// To the paired port, MACs swapped.
    MacSwap,
    /// Receive and count.
    RxOnly,
    /// Generate and send.
    TxOnly,
    /// Answer ARP requests and ICMP echo requests.
    IcmpEcho,
    /// To where the destination was seen last, else to all.
    Bridge,
}

/// How a worker waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PollMode {
    /// Never sleeps.
    Busy,
    /// Spins a short while after the last packet, then sleeps until it is kicked.
    Adaptive,
}

/// Everything `run` needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunConfig {
    /// At least one.
    pub ports: Vec<PortSpec>,
    /// How packets go from port to port.
    pub forward: ForwardMode,
    /// How long `bridge` knows an address that is silent.
    pub aging: Duration,
    /// Frame bytes without FCS for `txonly`: 14 to 65535.
    pub size: usize,
    /// A worker each: the CPU to pin it to, if any. At least one.
    pub workers: Vec<Option<usize>>,
    /// Most packets a burst: 1 to 64.
    pub burst: usize,
    /// How workers wait.
    pub poll: PollMode,
    /// Stop after this long.
    pub duration: Option<Duration>,
    /// Print a table this often.
    pub stats_interval: Option<Duration>,
    /// Print one JSON object at the end and no tables.
    pub json: bool,
    /// The control socket; by default in a folder of the user's.
    pub control: Option<PathBuf>,
}

/// What a sweep compares ringbridge with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Against {
    /// The plain rust-vmm backend.
    Reference,
}

/// Everything `sweep` needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SweepArgs {
    /// Frame sizes, in the order to measure them; each 14 to 65535, none twice.
    pub sizes: Vec<usize>,
    /// Take 20 seconds instead of 3 minutes.
    pub quick: bool,
    /// Measure this, too.
    pub against: Option<Against>,
    /// Write the results here as JSON.
    pub json: Option<PathBuf>,
    /// Plot them here.
    pub svg: Option<PathBuf>,
    /// The CPUs of backend and guest, two different ones; `None` where there is only one CPU.
    pub cpus: Option<(usize, usize)>,
}
