//! Devices that keep the rules.

use super::*;

/// All that is received of what `deliver` put there.
fn received(ring: &mut RxRing, pool: &mut Pool) -> Vec<Vec<u8>> {
    let mut burst = Burst::new();
    let mut packets = Vec::new();
    ring.poll(pool, &mut burst).unwrap();
    for packet in &burst {
        let mut bytes = Vec::new();
        pool.read(*packet, &mut bytes);
        assert_eq!(bytes.len(), packet.len as usize + pool.header_len());
        packets.push(bytes.split_off(pool.header_len()));
        pool.recycle(*packet);
    }
    ring.refill(pool);
    packets
}

#[test]
fn receives_in_every_layout() {
    for header in [HeaderPlace::WithData, HeaderPlace::Alone, HeaderPlace::Split(2)] {
        for table in [Table::Direct, Table::Indirect, Table::DirectThenIndirect] {
            for mergeable in [false, true] {
                let layout = Layout { header, data: 3 };
                let options = small(|o| {
                    (o.table, o.layout, o.mergeable) = (table, layout, mergeable);
                });
                let (mut ring, mut pool, mut device) = rx(&options);
                for round in 0..40u8 {
                    device.deliver(12, &[round; 150]);
                    assert_eq!(received(&mut ring, &mut pool), [[round; 150]]);
                }
            }
        }
    }
}

#[test]
fn a_packet_over_several_buffers_waits_for_the_last() {
    let (mut ring, mut pool, mut device) = rx(&small(|o| o.buffer_size = Some(60)));
    for round in 0..30u8 {
        let bytes: Vec<u8> = (0..200).map(|i| round.wrapping_mul(i)).collect();
        device.deliver(12, &bytes);
        // The device may publish the buffers one by one: take one step back.
        device.device.publish_used_idx(device.next_used.wrapping_sub(2));
        assert!(received(&mut ring, &mut pool).is_empty());
        device.publish();
        assert_eq!(received(&mut ring, &mut pool), std::slice::from_ref(&bytes));
    }
    assert_eq!(pool.free() + u32::from(ring.queue().outstanding()), pool.count());
}

#[test]
fn buffers_are_recycled_first_in_first_out() {
    let (mut ring, mut pool, mut device) = rx(&small(|_| ()));
    let mut seen = Vec::new();
    let mut burst = Burst::new();
    for _ in 0..4 * pool.count() {
        device.deliver(12, b"a packet");
        ring.poll(&mut pool, &mut burst).unwrap();
        seen.push(burst[0].buffer);
        pool.recycle(burst[0]);
        ring.refill(&mut pool);
    }
    // All of twice the ring's size take turns.
    assert_eq!(pool.count(), 16);
    assert!(seen.iter().enumerate().all(|(i, &b)| b == i as u32 % 16));
}

#[test]
fn chains_may_come_back_in_any_order() {
    let (mut ring, mut pool, mut device) = rx(&small(|_| ()));
    for round in 0..50 {
        let mut taken: Vec<_> = (0..5).map(|_| device.take().unwrap()).collect();
        taken.rotate_left(round % 5);
        for (i, (head, pieces)) in taken.iter().enumerate() {
            let mut bytes = [0; 26];
            bytes[10] = 1;
            bytes[12..].fill(i as u8 + 1);
            device.ram.write(pieces[0].0, &bytes);
            device.put_used(u32::from(*head), 26);
        }
        device.publish();
        let expected: Vec<_> = (1..=5).map(|i| vec![i; 14]).collect();
        assert_eq!(received(&mut ring, &mut pool), expected);
    }
}

#[test]
fn sends_and_takes_back() {
    for table in [Table::Direct, Table::Indirect, Table::DirectThenIndirect] {
        for header in [HeaderPlace::WithData, HeaderPlace::Alone] {
            let layout = Layout { header, data: 2 };
            let (mut ring, mut pool, mut device) =
                tx(&small(|o| (o.table, o.layout) = (table, layout)));
            for round in 0..40u8 {
                let packet = pool.take(100).unwrap();
                clear_header(&pool, packet);
                pool.write(packet, 12, &[round; 100]);
                assert!(ring.post(&pool, packet));
                ring.publish();
                let (head, pieces) = device.take().unwrap();
                let mut bytes = Vec::new();
                for (at, len) in pieces {
                    let start = bytes.len();
                    bytes.resize(start + len as usize, 0);
                    device.ram.read(at, &mut bytes[start..]);
                }
                assert_eq!(bytes[..12], [0; 12]);
                assert_eq!(bytes[12..], [round; 100]);
                assert_eq!(ring.reclaim(&mut pool), Ok(0));
                device.put_used(head.into(), 0);
                device.publish();
                assert_eq!(ring.reclaim(&mut pool), Ok(1));
            }
            assert_eq!(ring.completed(), Completed { packets: 40, bytes: 4000 });
            assert_eq!(pool.free(), pool.count());
        }
    }
}

/// Send `sizes` at once, in buffers of 60 bytes, and have the device give them back in an order
/// turned by `turn`.
fn send_and_shuffle(
    (ring, pool, device): &mut (TxRing, Pool, Played),
    sizes: &[usize],
    turn: usize,
) {
    for &size in sizes {
        let packet = pool.take(size).unwrap();
        clear_header(pool, packet);
        pool.write(packet, 12, &vec![size as u8; size]);
        assert!(ring.post(pool, packet));
    }
    ring.publish();
    let mut heads = Vec::new();
    for &size in sizes {
        let (head, pieces) = device.take().unwrap();
        let mut bytes = vec![0; 12 + size];
        let mut done = 0;
        for (at, len) in pieces {
            device.ram.read(at, &mut bytes[done..done + len as usize]);
            done += len as usize;
        }
        assert_eq!(bytes[..12], [0; 12]);
        assert!(bytes[12..].iter().all(|&b| b == size as u8), "{sizes:?}");
        heads.push(head);
    }
    heads.rotate_left(turn % sizes.len());
    // The first one comes alone: others are outstanding when it does.
    for head in heads {
        device.put_used(head.into(), 0);
        device.publish();
        assert_eq!(ring.reclaim(pool), Ok(1));
    }
}

#[test]
fn chains_of_all_lengths_share_a_ring_in_any_order() {
    let options = GuestOptions { queue_size: 32, max_size: 48, ..GuestOptions::default() };
    let mut all = tx(&options);
    let mut sent = 0;
    let mut round = |sizes: &[usize], turn| {
        send_and_shuffle(&mut all, sizes, turn);
        sent += sizes.len() as u64;
    };
    // One descriptor each at first, so that the longer ones come into a ring in disorder.
    (0..20).for_each(|turn| round(&[14, 20, 30, 40, 48], turn));
    (0..50).for_each(|turn| round(&[40, 200, 14, 100, 48, 49], turn));
    (0..20).for_each(|turn| round(&[14, 20, 30, 40, 48], turn));
    let (ring, pool, _) = all;
    assert_eq!(ring.completed().packets, sent);
    assert_eq!(pool.free(), pool.count());
}

#[test]
fn a_longer_chain_may_come_while_others_are_outstanding() {
    let options = GuestOptions { queue_size: 8, max_size: 48, ..GuestOptions::default() };
    let (mut ring, mut pool, mut device) = tx(&options);
    let mut post = |ring: &mut TxRing, size| {
        let packet = pool.take(size).unwrap();
        assert!(ring.post(&pool, packet));
        ring.publish();
    };
    for _ in 0..3 {
        post(&mut ring, 20);
    }
    let (first, _) = device.take().unwrap();
    device.take().unwrap();
    device.take().unwrap();
    post(&mut ring, 200);
    assert_eq!(ring.queue().room(), 1);
    let (longer, pieces) = device.take().unwrap();
    assert_eq!(pieces.iter().map(|p| p.1).collect::<Vec<_>>(), [60, 60, 60, 32]);
    device.put_used(longer.into(), 0);
    device.put_used(first.into(), 0);
    device.publish();
    assert_eq!(ring.reclaim(&mut pool), Ok(2));
    assert_eq!((ring.queue().room(), ring.queue().outstanding()), (6, 2));
    assert_eq!(ring.completed(), Completed { packets: 2, bytes: 220 });
    assert_eq!(pool.free(), pool.count() - 2);
}

#[test]
fn a_full_ring_takes_no_more() {
    let (mut ring, mut pool, _device) = tx(&small(|o| o.layout.header = HeaderPlace::Alone));
    for _ in 0..4 {
        let packet = pool.take(100).unwrap();
        assert!(ring.post(&pool, packet));
    }
    let packet = pool.take(100).unwrap();
    assert!(!ring.post(&pool, packet));
    assert_eq!(ring.queue().outstanding(), 4);
}

#[test]
fn kicks_exactly_when_wanted() {
    for event_idx in [false, true] {
        let (mut ring, mut pool, mut device) = tx(&small(|o| o.event_idx = event_idx));
        let mut send = |device: &mut Played| {
            let before = ring.queue().kicks();
            let packet = pool.take(60).unwrap();
            assert!(ring.post(&pool, packet));
            ring.publish();
            let (head, _) = device.take().unwrap();
            device.put_used(head.into(), 0);
            device.publish();
            ring.reclaim(&mut pool).unwrap();
            ring.queue().kicks() - before
        };
        device.device.disarm();
        if event_idx {
            // Stale: one ring ago.
            device.device.arm(FIRST.wrapping_sub(8));
        }
        assert_eq!([send(&mut device), send(&mut device)], [0, 0]);
        device.device.arm(device.next_avail);
        assert_eq!(send(&mut device), 1);
        // An event index asks once, a flag until it is taken back.
        assert_eq!(send(&mut device), u64::from(!event_idx));
        device.device.arm(device.next_avail.wrapping_add(1));
        assert_eq!([send(&mut device), send(&mut device)], [u64::from(!event_idx), 1]);
    }
}

#[test]
fn interrupts_are_asked_for_exactly_when_armed() {
    for event_idx in [false, true] {
        let (mut ring, mut pool, mut device) = rx(&small(|o| o.event_idx = event_idx));
        let wants = |device: &Played| {
            device.device.wants_interrupt(device.next_used.wrapping_sub(1), device.next_used)
        };
        device.deliver(12, b"fourteen bytes");
        assert!(!wants(&device), "not armed yet");
        assert!(!ring.queue().arm(), "there is a packet");
        ring.queue().disarm();
        assert_eq!(received(&mut ring, &mut pool).len(), 1);
        assert!(ring.queue().arm());
        device.deliver(12, b"fourteen bytes");
        assert!(wants(&device));
        ring.queue().disarm();
        assert_eq!(received(&mut ring, &mut pool).len(), 1);
        device.deliver(12, b"fourteen bytes");
        assert!(!wants(&device), "disarmed");
    }
}

#[test]
fn in_order_devices_may_write_the_last_entry_of_a_batch_alone() {
    let (mut ring, mut pool, mut device) = tx(&small(|o| o.in_order = true));
    for round in 0..20 {
        for _ in 0..5 {
            let packet = pool.take(60).unwrap();
            assert!(ring.post(&pool, packet));
        }
        ring.publish();
        let heads: Vec<u16> = (0..5).map(|_| device.take().unwrap().0).collect();
        device.next_used = device.next_used.wrapping_add(4);
        device.put_used(heads[4].into(), 0);
        device.publish();
        assert_eq!(ring.reclaim(&mut pool), Ok(5), "{round}");
    }
}

#[test]
fn raw_rings_say_what_they_are_told() {
    let mut plan = Plan::default();
    let place = RingPlace::new(&mut plan, 4);
    let ram = Arc::new(Ram::new(&plan, 0, 1, 0).unwrap());
    let mut raw = RawRing::new(Arc::clone(&ram), place).unwrap();
    let desc = RawDesc { addr: 0x1234, len: 5, flags: DESC_NEXT, next: 0xffff };
    raw.post(3, &[desc]);
    raw.post_head(0x8000);
    raw.set_used_event(7);
    let offset = |user: u64| (user - ram.user(0)) as usize;
    let at = raw.area().user_addresses();
    let mut seen = [0; 16];
    ram.read(offset(at.desc) + 48, &mut seen);
    assert_eq!(seen, desc.bytes());
    let mut avail = [0; 14];
    ram.read(offset(at.avail), &mut avail);
    assert_eq!(avail, [0, 0, 2, 0, 3, 0, 0, 0x80, 0, 0, 0, 0, 7, 0]);
    ram.write(offset(at.used) + 2, &[1, 0, 9, 0, 0, 0, 8, 0, 0, 0]);
    assert_eq!((raw.used_idx(), raw.used(0)), (1, (9, 8)));
}
