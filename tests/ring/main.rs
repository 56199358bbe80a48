//! The rings against a driver that is written plainly: layouts, errors, wraps, notifications,
//! and a comparison with `virtio-queue` on random input.

mod borders;
mod dequeue;
mod differential;
mod enqueue;
mod guest;
mod logged;
mod protocol;
mod spread;

use ringbridge::counters::QueueCounters;
use ringbridge::packet::Packets;
use ringbridge::virtio::SplitRing;

/// Bytes of packet `i`, head and tail.
fn bytes(packets: &Packets, i: usize) -> Vec<u8> {
    let mut out = vec![0; packets.packet_len(i)];
    packets.copy_out(i, &mut out);
    out
}

/// Receive one burst, give the buffers back, notify; the packets' bytes.
fn receive(ring: &mut SplitRing, max: usize, counters: &QueueCounters) -> Vec<Vec<u8>> {
    let mut packets = Packets::new();
    // SAFETY: the packets are forgotten before the ring goes.
    unsafe { ring.receive(&mut packets, max, counters) };
    let received = (0..packets.len()).map(|i| bytes(&packets, i)).collect();
    packets.clear();
    ring.complete_receive();
    ring.notify();
    received
}
