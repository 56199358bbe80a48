//! What the modes do to a frame, seen by a guest that looks at every byte.

use super::common::bridge::{Bed, Peer, alone};
use super::{assert_clean, guest, verify};
use ringbridge::config::ForwardMode;
use ringbridge::counters::Reason;
use ringbridge::frontend::{Frames, GuestOptions, Number};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn frame(seq: u64, len: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    Frames::new(3, false).build(Number { stream: 0, seq }, len, &mut frame);
    frame
}

/// Frames from one guest to another; what became of each.
fn carry(mode: ForwardMode, expected: impl Fn(usize, &[u8]) -> Vec<u8>) {
    let bed = Bed::with(2, |config, _| config.forward = mode);
    let mut peers = [0, 1].map(|i| Peer::connect(&bed.socket(i)));
    for peer in &peers {
        peer.settle();
    }
    for (seq, len) in [14, 15, 41, 64, 191, 192, 193, 256, 257, 1518, 4000].into_iter().enumerate()
    {
        for from in [0, 1] {
            let sent = frame(seq as u64, len);
            peers[from].send(&sent);
            let got = peers[1 - from].receive();
            assert_eq!(got, expected(1 - from, &sent), "{mode:?}: {len} bytes from {from}");
        }
    }
    let bridge = bed.stop().0;
    assert!(bridge.ports.iter().all(|p| p.rx.packets == 11 && p.tx.packets == 11));
}

#[test]
fn io_changes_nothing() {
    let _alone = alone();
    carry(ForwardMode::Io, |_, sent| sent.to_vec());
}

#[test]
fn macswap_swaps_and_changes_nothing_else() {
    let _alone = alone();
    carry(ForwardMode::MacSwap, |_, sent| [&sent[6..12], &sent[..6], &sent[12..]].concat());
}

#[test]
fn mac_sets_both_addresses_by_output_port() {
    let _alone = alone();
    carry(ForwardMode::Mac, |to, sent| {
        let to = to as u8;
        let macs = [2, 0, 0, 0, 0, to, 2, 0x72, 0x62, 0, 0, to];
        [&macs[..], &sent[12..]].concat()
    });
}

/// Swapped on the way there and on the way back, a verify stream is what it was.
#[test]
fn macswap_at_speed() {
    let _alone = alone();
    let bed = Bed::with(2, |config, _| config.forward = ForwardMode::MacSwap);
    let stop = Arc::new(AtomicBool::new(false));
    let mut relay = guest(&bed, &[1], GuestOptions::default());
    let flag = Arc::clone(&stop);
    let relay = std::thread::spawn(move || relay.io(1518, 0, None, &flag).unwrap());
    let mut sender = guest(&bed, &[0], GuestOptions::default());
    let report = verify(&mut sender, 14, 64, 200);
    stop.store(true, Ordering::Relaxed);
    assert_clean(&report, "macswap there and back");
    assert_clean(&relay.join().unwrap(), "the relay");
}

#[test]
fn icmpecho_drops_what_it_does_not_answer() {
    let _alone = alone();
    let bed = Bed::with(1, |config, _| config.forward = ForwardMode::IcmpEcho);
    let mut peer = Peer::connect(&bed.socket(0));
    for seq in 0..100 {
        peer.send(&frame(seq, 64));
    }
    bed.expect("dropped", |s| s.ports[0].rx.drops.of(Reason::NotForUs) == 100);
    let (us, guest) = ([2, 0x72, 0x62, 0, 0, 0], [2, 0, 0, 0, 0, 1]);
    let (asked, asker) = ([10, 0, 0, 2], [10, 0, 0, 1]);
    let arp = |to: &[u8], from: &[u8], operation: &[u8], addresses: [&[u8]; 4]| {
        [to, from, &[8, 6, 0, 1, 8, 0, 6, 4], operation, &addresses.concat()].concat()
    };
    peer.send(&arp(&[255; 6], &guest, &[0, 1], [&guest, &asker, &[0; 6], &asked]));
    let answer = arp(&guest, &us, &[0, 2], [&us, &asked, &guest, &asker]);
    assert_eq!(peer.receive(), answer);
}
