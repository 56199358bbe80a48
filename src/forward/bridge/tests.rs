//! A bridge against a plain model of one.

use super::*;
use crate::config::Vlan;
use crate::forward::tests::burst;
use proptest::prelude::*;
use std::collections::{BTreeSet, HashMap};

fn frame(to: Mac, from: Mac, tag: Option<u16>) -> Vec<u8> {
    let mut frame = [to, from].concat();
    if let Some(tci) = tag {
        frame.extend([[0x81, 0], tci.to_be_bytes()].concat());
    }
    frame.extend([0x88, 0xb5]);
    frame.resize(60, 0);
    frame
}

/// A bridge of these ports.
fn bridge(ports: &[BridgeKeys]) -> Bridge {
    let shared = Arc::new(Shared::new(300));
    let mut bridge = Bridge::new(&shared);
    let mut all = Ports::default();
    for (port, keys) in ports.iter().enumerate() {
        shared.add(port, keys);
        all.set(port, Some(keys.clone()));
    }
    bridge.set_ports(&Arc::new(all));
    bridge
}

/// Where each of these frames goes.
fn outputs(
    bridge: &mut Bridge,
    from: PortId,
    frames: &[Vec<u8>],
) -> Vec<BTreeSet<(PortId, String)>> {
    let mut packets = burst(frames);
    let mut out = Outputs::new();
    out.begin(frames.len());
    bridge.forward(from, &mut packets, &mut out);
    assert_eq!(out.runs().map(|(_, output)| output).collect::<Vec<_>>(), [Output::Listed]);
    let mut all = vec![BTreeSet::new(); frames.len()];
    for list in bridge.lists.iter() {
        assert!(list.which.is_sorted());
        for &i in &list.which {
            assert!(all[i as usize].insert((list.port, format!("{:?}", list.edit))), "twice");
        }
    }
    let nowhere = all.iter().filter(|to| to.is_empty()).count() as u64;
    assert_eq!(bridge.lists.lost().iter().map(|(_, n)| n).sum::<u64>(), nowhere);
    all
}

fn to(bridge: &mut Bridge, from: PortId, frame: Vec<u8>) -> Vec<PortId> {
    outputs(bridge, from, &[frame])[0].iter().map(|(port, _)| *port).collect()
}

fn lost(bridge: &Bridge) -> Reason {
    bridge.lists.lost()[0].0
}

const A: Mac = [2, 0, 0, 0, 0, 0xa];
const B: Mac = [2, 0, 0, 0, 0, 0xb];
const ALL: Mac = [0xff; 6];

#[test]
fn it_floods_learns_and_follows() {
    let mut bridge = bridge(&vec![BridgeKeys::default(); 4]);
    assert_eq!(to(&mut bridge, 0, frame(B, A, None)), [1, 2, 3]);
    assert_eq!(to(&mut bridge, 2, frame(A, B, None)), [0]);
    assert_eq!(to(&mut bridge, 0, frame(B, A, None)), [2]);
    assert_eq!(to(&mut bridge, 0, frame(ALL, A, None)), [1, 2, 3]);
    // B announces itself at another port.
    assert_eq!(to(&mut bridge, 3, wire::rarp(B).to_vec()), [0, 1, 2]);
    assert_eq!(to(&mut bridge, 0, frame(B, A, None)), [3]);
    assert_eq!(to(&mut bridge, 3, frame(B, A, None)), [0; 0]);
    assert_eq!(lost(&bridge), Reason::NotForUs);
    // Within a burst, too.
    let burst = [frame(A, B, None), frame(B, [2; 6], None)];
    assert_eq!(outputs(&mut bridge, 1, &burst)[1], BTreeSet::new());
}

#[test]
fn some_frames_go_nowhere() {
    let keys = BridgeKeys { macs: vec![A], ..BridgeKeys::default() };
    let mut bridge = bridge(&[keys, BridgeKeys::default(), BridgeKeys::default()]);
    let cases = [
        (1, frame([1, 0x80, 0xc2, 0, 0, 0], B, None), Reason::Reserved),
        (1, frame([1, 0x80, 0xc2, 0, 0, 0xf], B, None), Reason::Reserved),
        (1, frame(ALL, [3; 6], None), Reason::BadSource),
        (1, frame(ALL, A, None), Reason::BadSource),
        (1, vec![0; 13], Reason::Runt),
    ];
    for (from, frame, reason) in cases {
        assert_eq!(to(&mut bridge, from, frame), [0; 0]);
        assert_eq!(lost(&bridge), reason);
    }
    assert_eq!(to(&mut bridge, 1, frame([1, 0x80, 0xc2, 0, 0, 0x10], B, None)), [0, 2]);
    // Written down, and never heard.
    assert_eq!(to(&mut bridge, 2, frame(A, B, None)), [0]);
}

#[test]
fn isolated_ports_meet_only_others() {
    let isolated = BridgeKeys { isolated: true, ..BridgeKeys::default() };
    let mut bridge = bridge(&[isolated.clone(), isolated, BridgeKeys::default()]);
    assert_eq!(to(&mut bridge, 0, frame(ALL, A, None)), [2]);
    assert_eq!(to(&mut bridge, 2, frame(ALL, [2; 6], None)), [0, 1]);
    assert_eq!(to(&mut bridge, 1, frame(A, B, None)), [0; 0]);
    assert_eq!(lost(&bridge), Reason::NoOutput);
    assert_eq!(to(&mut bridge, 2, frame(A, [2; 6], None)), [0]);
}

/// Kinds of port that the model has, by number.
fn kinds() -> Vec<BridgeKeys> {
    let vlans = [
        Vlan::None,
        Vlan::Access(10),
        Vlan::Access(20),
        Vlan::Trunk([10, 20].into()),
        Vlan::Trunk([20].into()),
        Vlan::None,
    ];
    let keys = vlans.into_iter().enumerate().map(|(i, vlan)| BridgeKeys {
        vlan,
        isolated: i % 2 == 1,
        ..BridgeKeys::default()
    });
    keys.collect()
}

proptest! {
    #[test]
    fn it_is_a_bridge(
        frames in prop::collection::vec(
            (0_usize..6, 0_u8..8, 1_u8..8, prop::option::of(prop::sample::select(vec![0_u16, 10, 20, 30, 0x200a]))),
            1..300,
        ),
    ) {
        let keys = kinds();
        let mut bridge = bridge(&keys);
        let mut seen: HashMap<(u8, u16), PortId> = HashMap::new();
        for (from, dst, src, tag) in frames {
            let mac = |n: u8| if n == 0 { ALL } else { [2, 0, 0, 0, 0, n] };
            let got = &outputs(&mut bridge, from, &[frame(mac(dst), mac(src), tag)])[0];
            let tag_vid = tag.map_or(0, |tag| tag & 0xfff);
            let vid = match &keys[from].vlan {
                Vlan::None => Some(0),
                Vlan::Access(vid) => (tag_vid == 0).then_some(*vid),
                Vlan::Trunk(vids) => vids.iter().copied().find(|vid| *vid == tag_vid),
            };
            let mut expected = BTreeSet::new();
            if let Some(vid) = vid {
                seen.insert((src, vid), from);
                let known = seen.get(&(dst, vid)).copied();
                for (port, to) in keys.iter().enumerate() {
                    let member = match &to.vlan {
                        Vlan::None => vid == 0,
                        Vlan::Access(own) => *own == vid,
                        Vlan::Trunk(own) => own.contains(&vid),
                    };
                    let wanted = known.is_none_or(|known| known == port);
                    let apart = keys[from].isolated && to.isolated;
                    if port == from || !member || !wanted || apart {
                        continue;
                    }
                    let edit = match (&to.vlan, tag) {
                        (Vlan::Access(_), Some(_)) => TagEdit::Pop,
                        (Vlan::Trunk(_), None) => TagEdit::Push(vid),
                        (Vlan::Trunk(_), Some(_)) if tag_vid == 0 => TagEdit::Set(vid),
                        _ => TagEdit::Keep,
                    };
                    expected.insert((port, format!("{edit:?}")));
                }
            }
            prop_assert_eq!(got, &expected);
        }
    }
}
