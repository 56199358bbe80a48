//! The host at the other port: pings a guest, sends it frames, sees all that it sends.
//!
//! Promises: what comes back is compared byte by byte; every wait has a limit.

use crate::common::bridge::Peer;
use crate::common::wait_until;
use etherparse::{
    IcmpEchoHeader, Icmpv4Type, NetSlice, PacketBuilder, SlicedPacket, TransportSlice,
};
use ringbridge::frontend::GuestOptions;
use std::path::Path;
use std::time::Duration;

/// MAC address of a guest's first device, as `qemu/guest` numbers them.
pub const GUEST_MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];
const GUEST_IP: [u8; 4] = [10, 9, 0, 1];
const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x64];
const HOST_IP: [u8; 4] = [10, 9, 0, 100];
/// What a guest runs to be reached, the device given as `$dev`.
const CONFIGURE: &str = "ip link set $dev up; ip addr add 10.9.0.1/24 dev $dev;
    arp -i $dev -s 10.9.0.100 02:00:00:00:00:64";
/// Local experiments (IEEE 802): no kernel answers it.
const NO_PROTOCOL: u16 = 0x88b5;

/// Commands that give the guest's device `dev` its address.
pub fn configure(dev: &str) -> String {
    CONFIGURE.replace("$dev", dev)
}

/// A host on a port of its own.
pub struct Host {
    peer: Peer,
    sequence: u16,
}

impl Host {
    /// Connect to a port.
    pub fn connect(socket: &Path) -> Self {
        let options = GuestOptions { queue_size: 256, ..GuestOptions::default() };
        let peer = Peer::with(socket, options);
        peer.settle();
        Host { peer, sequence: 0 }
    }

    /// Is a ping with `len` bytes of data answered within `limit`? What else comes is dropped.
    pub fn ping_within(&mut self, len: usize, limit: Duration) -> bool {
        self.sequence = self.sequence.wrapping_add(1);
        let echo = IcmpEchoHeader { id: 9, seq: self.sequence };
        let data: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_add(self.sequence as u8)).collect();
        let mut frame = Vec::new();
        PacketBuilder::ethernet2(HOST_MAC, GUEST_MAC)
            .ipv4(HOST_IP, GUEST_IP, 64)
            .icmpv4_echo_request(echo.id, echo.seq)
            .write(&mut frame, &data)
            .unwrap();
        self.peer.send(&frame);
        wait_until(limit, || {
            while self.peer.has_frame() {
                if is_reply(&self.peer.take(), echo, &data) {
                    return true;
                }
            }
            false
        })
    }

    /// Ping it; it answers.
    pub fn ping(&mut self, len: usize) {
        assert!(self.ping_within(len, Duration::from_secs(20)), "no answer to a ping of {len}");
    }

    /// Ping until there is an answer, at most `limit`.
    pub fn ping_until(&mut self, limit: Duration) {
        let each = Duration::from_millis(200);
        assert!(wait_until(limit, || self.ping_within(56, each)), "no answer in {limit:?}");
    }

    /// Send the guest a frame of `len` bytes that it counts and does not answer; no two are equal.
    pub fn send_silent(&mut self, len: usize) {
        self.sequence = self.sequence.wrapping_add(1);
        let mut frame: Vec<u8> = self.sequence.to_ne_bytes().repeat(len / 2);
        frame[..6].copy_from_slice(&GUEST_MAC);
        frame[6..12].copy_from_slice(&HOST_MAC);
        frame[12..14].copy_from_slice(&NO_PROTOCOL.to_be_bytes());
        self.peer.send(&frame);
    }

    /// Send a UDP packet of this flow.
    pub fn send_flow(&mut self, flow: u16) {
        let mut frame = Vec::new();
        PacketBuilder::ethernet2(HOST_MAC, GUEST_MAC)
            .ipv4(HOST_IP, GUEST_IP, 64)
            .udp(10_000 + flow, 9)
            .write(&mut frame, &[0; 32])
            .unwrap();
        self.peer.send(&frame);
    }

    /// Wait for so many pings of the guest's.
    pub fn expect_pings(&mut self, count: usize) {
        for _ in 0..count {
            self.expect("a ping", |frame| {
                let packet = SlicedPacket::from_ethernet(frame).unwrap();
                let Some(TransportSlice::Icmpv4(icmp)) = packet.transport else { return false };
                matches!(icmp.icmp_type(), Icmpv4Type::EchoRequest(_))
            });
        }
    }

    /// Wait for a frame of which `is` is true.
    pub fn expect(&mut self, what: &str, is: impl Fn(&[u8]) -> bool) {
        let came = wait_until(Duration::from_secs(20), || {
            while self.peer.has_frame() {
                if is(&self.peer.take()) {
                    return true;
                }
            }
            false
        });
        assert!(came, "{what} did not come");
    }
}

fn is_reply(frame: &[u8], echo: IcmpEchoHeader, data: &[u8]) -> bool {
    let Ok(packet) = SlicedPacket::from_ethernet(frame) else { return false };
    let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Icmpv4(icmp))) =
        (&packet.net, &packet.transport)
    else {
        return false;
    };
    let addresses = (ip.header().source(), ip.header().destination()) == (GUEST_IP, HOST_IP);
    let reply = icmp.icmp_type() == Icmpv4Type::EchoReply(echo);
    // The same number with other bytes is no lost reply, but a wrong one.
    if addresses && reply {
        assert_eq!(icmp.payload(), data);
    }
    addresses && reply
}
