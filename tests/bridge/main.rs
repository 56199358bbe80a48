//! `--forward bridge` with guests whose every frame the test sees.

#[path = "../common/mod.rs"]
mod common;

use common::bridge::{Bed, LIMIT, Peer, alone, vhost};
use common::wait_until;
use ringbridge::config::{BridgeKeys, ForwardMode, Vlan};
use ringbridge::counters::Reason;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

type Mac = [u8; 6];
const ALL: Mac = [0xff; 6];

/// The address of guest `n`.
fn mac(n: u8) -> Mac {
    [2, 0, 0, 0, 0, n]
}

/// A frame with a number, so that no two are equal.
fn frame(to: Mac, from: Mac, tag: Option<u16>, number: u32) -> Vec<u8> {
    let mut frame = [to, from].concat();
    if let Some(vid) = tag {
        frame.extend([[0x81, 0], vid.to_be_bytes()].concat());
    }
    frame.extend([0x88, 0xb5]);
    frame.extend(number.to_be_bytes());
    frame.resize(300, number as u8);
    frame
}

/// A bridge with a guest at each of its ports.
struct Net {
    bed: Bed,
    guests: Vec<Peer>,
}

impl Net {
    fn new(ports: &[BridgeKeys], aging: Duration) -> Self {
        let bed = Bed::with(0, |config, dir| {
            config.forward = ForwardMode::Bridge;
            config.aging = aging;
            config.ports = (0..ports.len()).map(|i| vhost(&dir.path(&format!("{i}")), 1)).collect();
            for (port, keys) in config.ports.iter_mut().zip(ports) {
                port.bridge = keys.clone();
            }
        });
        let guests: Vec<_> = (0..ports.len()).map(|i| Peer::connect(&bed.socket(i))).collect();
        for guest in &guests {
            guest.settle();
        }
        Net { bed, guests }
    }

    fn plain(ports: usize) -> Self {
        Self::new(&vec![BridgeKeys::default(); ports], Duration::from_mins(5))
    }

    /// `from` sends a frame; these guests get it like this, and no other gets anything.
    fn expect(&mut self, from: usize, sent: &[u8], got: &[(usize, &[u8])]) {
        let before = self.moved();
        self.guests[from].send(sent);
        for (guest, frame) in got {
            assert_eq!(self.guests[*guest].receive(), *frame, "at {guest}");
        }
        // Whatever became of it, it is counted.
        let counted = wait_until(LIMIT, || self.moved().0 > before.0);
        assert!(
            counted && self.moved().1 - before.1 == got.len() as u64,
            "{:?}",
            self.bed.counters()
        );
        assert!(self.guests.iter().all(|guest| !guest.has_frame()));
    }

    /// Packets received, and packets sent.
    fn moved(&self) -> (u64, u64) {
        let ports = self.bed.counters().ports;
        let dropped = |port: &ringbridge::stats::PortTotals| port.rx.drops.total();
        let received = ports.iter().map(|port| port.rx.packets).sum::<u64>();
        let done = ports.iter().map(|p| p.tx.packets).sum::<u64>();
        // A frame is done with when it was sent or dropped.
        let finished = done + ports.iter().map(dropped).sum::<u64>();
        (received.min(finished), done)
    }

    fn lost(&self, port: usize, reason: Reason) -> u64 {
        self.bed.counters().ports[port].rx.drops.of(reason)
    }

    /// The guest at `port` has moved there, says its VMM.
    fn announce(&self, port: usize, mac: Mac) {
        let mut message = [19_u32, 1, 8].map(u32::to_ne_bytes).concat();
        message.extend(mac);
        message.extend([0; 2]);
        UnixStream::connect(self.bed.socket(port)).unwrap().write_all(&message).unwrap();
    }
}

#[test]
fn it_learns_floods_and_follows() {
    let _alone = alone();
    let mut net = Net::plain(3);
    let hello = frame(mac(1), mac(0), None, 1);
    net.expect(0, &hello, &[(1, &hello), (2, &hello)]);
    let answer = frame(mac(0), mac(1), None, 2);
    net.expect(1, &answer, &[(0, &answer)]);
    let direct = frame(mac(1), mac(0), None, 3);
    net.expect(0, &direct, &[(1, &direct)]);
    let all = frame(ALL, mac(0), None, 4);
    net.expect(0, &all, &[(1, &all), (2, &all)]);
    // A gratuitous ARP from elsewhere, and it is there.
    let arp = frame(ALL, mac(1), None, 5);
    net.expect(2, &arp, &[(0, &arp), (1, &arp)]);
    let moved = frame(mac(1), mac(0), None, 6);
    net.expect(0, &moved, &[(2, &moved)]);
}

#[test]
fn a_guest_that_has_migrated_is_found_by_its_announcement() {
    let _alone = alone();
    let mut net = Net::plain(3);
    let hello = frame(ALL, mac(9), None, 1);
    net.expect(1, &hello, &[(0, &hello), (2, &hello)]);
    // Its new VMM is the next frontend at port 2.
    drop(net.guests.pop());
    net.announce(2, mac(9));
    for guest in 0..2 {
        let rarp = net.guests[guest].receive();
        assert_eq!((&rarp[6..12], &rarp[12..14]), (&mac(9)[..], &[0x80, 0x35][..]));
    }
    net.guests.push(Peer::connect(&net.bed.socket(2)));
    net.guests[2].settle();
    let direct = frame(mac(9), mac(0), None, 2);
    net.expect(0, &direct, &[(2, &direct)]);
}

#[test]
fn one_that_invents_addresses_pushes_out_no_other() {
    let _alone = alone();
    let few = BridgeKeys { quota: 16, ..BridgeKeys::default() };
    let mut net =
        Net::new(&[BridgeKeys::default(), BridgeKeys::default(), few], Duration::from_mins(5));
    for (at, n) in [(0, 1), (1, 2)] {
        let hello = frame([2; 6], mac(n), None, u32::from(n));
        let others: Vec<_> = (0..3).filter(|i| *i != at).map(|i| (i, &hello[..])).collect();
        net.expect(at, &hello, &others);
    }
    for i in 0..500_u32 {
        let [a, b, c, d] = i.to_be_bytes();
        net.guests[2].send(&frame(mac(1), [6, 6, a, b, c, d], None, i));
        assert_eq!(net.guests[0].receive(), frame(mac(1), [6, 6, a, b, c, d], None, i));
    }
    let macs = net.bed.bridge().macs();
    assert_eq!(macs.iter().filter(|(learned, _)| learned.known.port == 2).count(), 16);
    let direct = frame(mac(2), mac(1), None, 7);
    net.expect(0, &direct, &[(1, &direct)]);
    assert!(!net.guests[1].has_frame() && !net.guests[2].has_frame());
}

#[test]
fn written_down_isolated_and_reserved() {
    let _alone = alone();
    let fixed = BridgeKeys { macs: vec![mac(1)], isolated: true, ..BridgeKeys::default() };
    let isolated = BridgeKeys { isolated: true, ..BridgeKeys::default() };
    let mut net = Net::new(&[fixed, isolated, BridgeKeys::default()], Duration::from_mins(5));
    let first = frame(mac(1), mac(3), None, 1);
    net.expect(2, &first, &[(0, &first)]);
    net.expect(2, &frame(ALL, mac(1), None, 2), &[]);
    assert_eq!(net.lost(2, Reason::BadSource), 1);
    net.expect(2, &frame([1, 0x80, 0xc2, 0, 0, 0xe], mac(3), None, 3), &[]);
    assert_eq!(net.lost(2, Reason::Reserved), 1);
    let all = frame(ALL, mac(2), None, 4);
    net.expect(1, &all, &[(2, &all)]);
    net.expect(1, &frame(mac(1), mac(2), None, 5), &[]);
    assert_eq!(net.lost(1, Reason::NoOutput), 1);
}

#[test]
fn vlans_are_apart_and_tags_are_made_and_taken() {
    let _alone = alone();
    let keys = |vlan| BridgeKeys { vlan, ..BridgeKeys::default() };
    let ports =
        [Vlan::Access(10), Vlan::Access(20), Vlan::Trunk([10, 20].into()), Vlan::Access(10)];
    let mut net = Net::new(&ports.map(keys), Duration::from_mins(5));
    for number in 0..3 {
        let (plain, tagged) =
            (frame(ALL, mac(1), None, number), frame(ALL, mac(1), Some(10), number));
        let mut tagged = tagged;
        // The tag comes on top.
        tagged.resize(304, number as u8);
        net.expect(0, &plain, &[(2, &tagged), (3, &plain)]);
    }
    let mut back = frame(mac(1), mac(2), Some(10), 9);
    back.resize(304, 9);
    net.expect(2, &back, &[(0, &frame(mac(1), mac(2), None, 9))]);
    // Known in VLAN 10 only.
    let mut other = frame(mac(1), mac(2), Some(20), 10);
    other.resize(304, 10);
    net.expect(2, &other, &[(1, &frame(mac(1), mac(2), None, 10))]);
    net.expect(2, &frame(ALL, mac(2), Some(30), 11), &[]);
    net.expect(2, &frame(ALL, mac(2), None, 12), &[]);
    net.expect(0, &frame(ALL, mac(1), Some(20), 13), &[]);
    assert_eq!((net.lost(2, Reason::Vlan), net.lost(0, Reason::Vlan)), (2, 1));
}

#[test]
fn addresses_grow_old_and_go_with_their_port() {
    let _alone = alone();
    let mut net = Net::new(&vec![BridgeKeys::default(); 3], Duration::from_secs(1));
    let hello = frame(ALL, mac(1), None, 1);
    net.expect(1, &hello, &[(0, &hello), (2, &hello)]);
    let direct = frame(mac(1), mac(0), None, 2);
    net.expect(0, &direct, &[(1, &direct)]);
    assert!(wait_until(LIMIT, || net.bed.bridge().macs().iter().all(|(m, _)| m.mac != mac(1))));
    let lost = frame(mac(1), mac(0), None, 3);
    net.expect(0, &lost, &[(1, &lost), (2, &lost)]);
    // Seen again, and gone with its port.
    net.expect(1, &hello, &[(0, &hello), (2, &hello)]);
    net.bed.bridge().remove_port("1").unwrap();
    drop(net.guests.remove(1));
    let gone = frame(mac(1), mac(0), None, 4);
    let ports = net.bed.counters().ports.len();
    assert_eq!(ports, 2);
    net.guests[0].send(&gone);
    assert_eq!(net.guests[1].receive(), gone, "to all that are left");
    // And another one that comes belongs to it.
    let path = net.bed.dir.path("new");
    net.bed.bridge().add_port(&vhost(&path, 1)).unwrap();
    let mut guest = Peer::connect(&path);
    guest.settle();
    let all = frame(ALL, mac(0), None, 5);
    net.guests[0].send(&all);
    assert_eq!((net.guests[1].receive(), guest.receive()), (all.clone(), all));
}
