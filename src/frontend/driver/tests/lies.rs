//! Devices that break the rules: each lie is an error of its own name.

use super::*;

/// What receiving says after the device did `lie`.
fn lie(options: &GuestOptions, lie: impl FnOnce(&mut Played)) -> RingError {
    let (mut ring, mut pool, mut device) = rx(options);
    lie(&mut device);
    ring.poll(&mut pool, &mut Burst::new()).unwrap_err()
}

#[test]
fn lies_of_the_device_are_errors() {
    let honest = small(|_| ());
    let used = |id, len| {
        move |device: &mut Played| {
            device.take();
            device.put_used(id, len);
            device.publish();
        }
    };
    let error = lie(&honest, |d| d.device.publish_used_idx(FIRST.wrapping_add(9)));
    let next = FIRST;
    assert_eq!(error, RingError::UsedIndex { idx: 3, next, outstanding: 8 });
    let error = lie(&honest, |d| d.device.publish_used_idx(FIRST.wrapping_sub(1)));
    assert_eq!(error, RingError::UsedIndex { idx: 65529, next, outstanding: 8 });
    for id in [8, 0xffff, 0x1_0000, u32::MAX] {
        assert_eq!(lie(&honest, used(id, 60)), RingError::UsedId { at: FIRST, id });
    }
    let twice = |device: &mut Played| {
        device.put_used(3, 60);
        device.put_used(3, 60);
        device.publish();
    };
    assert_eq!(lie(&honest, twice), RingError::UsedId { at: FIRST + 1, id: 3 });
    for len in [0, 11, 301, u32::MAX] {
        let error = RingError::UsedLength { len, least: 12, most: 300 };
        assert_eq!(lie(&honest, used(0, len)), error);
        assert_eq!(lie(&small(|o| o.mergeable = false), used(0, len)), error);
    }
    // The header is still zero.
    assert_eq!(lie(&honest, used(0, 60)), RingError::NumBuffers(0));
    let in_order = small(|o| o.in_order = true);
    assert_eq!(lie(&in_order, used(1, 60)), RingError::Order { at: FIRST, id: 1, expected: 0 });
}

#[test]
fn lies_about_further_buffers_are_errors() {
    let buffers = |n: u16, lengths: &'static [u32]| {
        lie(&small(|_| ()), move |device| {
            for (i, len) in lengths.iter().enumerate() {
                let (head, pieces) = device.take().unwrap();
                if i == 0 {
                    device.ram.write(pieces[0].0 + 10, &n.to_le_bytes());
                }
                device.put_used(head.into(), *len);
            }
            device.publish();
        })
    };
    assert_eq!(buffers(17, &[300]), RingError::NumBuffers(17));
    let zero = RingError::UsedLength { len: 0, least: 1, most: 300 };
    assert_eq!(buffers(2, &[300, 0]), zero);
    let long = RingError::UsedLength { len: 301, least: 1, most: 300 };
    assert_eq!(buffers(2, &[300, 301]), long);
}
