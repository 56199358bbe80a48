//! Every shape of ring and buffer, each on a port that is paired with itself.

use super::common::bridge::{Bed, alone};
use super::{assert_clean, assert_counted, guest, verify};
use ringbridge::frontend::{GuestOptions, HeaderPlace, Layout, Table};

const HEADERS: [HeaderPlace; 4] =
    [HeaderPlace::WithData, HeaderPlace::Alone, HeaderPlace::Split(2), HeaderPlace::Split(9)];
const TABLES: [Table; 3] = [Table::Direct, Table::Indirect, Table::DirectThenIndirect];

/// One run of a guest of its own on a bridge of its own.
fn run(options: &GuestOptions, ms: u64) {
    let bed = Bed::new(1);
    let what = format!("{options:?}");
    let mut guest = guest(&bed, &[0], options.clone());
    let report = verify(&mut guest, 14, 64, ms);
    assert_clean(&report, &what);
    guest.stop().unwrap();
    assert_counted(&bed.stop().0, &report, 0, 0, &what);
}

/// Each layout with each table, header and mergeable setting; the other features take turns so
/// that each meets each.
#[test]
fn layouts_tables_headers_and_mergeable_buffers() {
    let _alone = alone();
    let mut turn = 0;
    for header in HEADERS {
        for data in [1, 2, 5] {
            for table in TABLES {
                for (mergeable, version_1) in
                    [(false, false), (false, true), (true, false), (true, true)]
                {
                    turn += 1;
                    run(
                        &GuestOptions {
                            mergeable,
                            version_1,
                            table,
                            layout: Layout { header, data },
                            // The header alone or more; packets over many of them.
                            buffer_size: mergeable.then_some([80, 300, 2048][turn % 3]),
                            max_size: 600,
                            event_idx: turn % 2 == 0,
                            in_order: turn % 5 < 2,
                            interrupts: turn % 7 < 2,
                            ..GuestOptions::default()
                        },
                        15,
                    );
                }
            }
        }
    }
}

#[test]
fn ring_sizes_and_wrapping_indices() {
    let _alone = alone();
    for queue_size in [2, 4, 16, 256, 1024, 32768] {
        for mergeable in [false, true] {
            for event_idx in [false, true] {
                let options = GuestOptions {
                    queue_size,
                    mergeable,
                    event_idx,
                    in_order: mergeable == event_idx,
                    max_size: 200,
                    buffer_size: mergeable.then_some(150),
                    first_index: 65536_u32.wrapping_sub(u32::from(queue_size / 2) + 1) as u16,
                    ..GuestOptions::default()
                };
                run(&options, 50);
            }
        }
    }
}

/// A packet takes all of the ring's buffers.
#[test]
fn the_longest_packets() {
    let _alone = alone();
    for (mergeable, buffer_size) in [(false, None), (true, Some(4096)), (true, Some(257))] {
        let options = GuestOptions {
            mergeable,
            buffer_size,
            max_size: 65535,
            first_index: 65500,
            ..GuestOptions::default()
        };
        run(&options, 100);
    }
}

/// Buffers that lie across the border of two regions.
#[test]
fn memory_in_several_regions() {
    let _alone = alone();
    for regions in [2, 3, 8] {
        for (mergeable, table) in [(false, Table::Direct), (true, Table::Indirect)] {
            for data in [1, 3] {
                let options = GuestOptions {
                    regions,
                    mergeable,
                    table,
                    layout: Layout { header: HeaderPlace::WithData, data },
                    queue_size: 64,
                    max_size: 9000,
                    ..GuestOptions::default()
                };
                run(&options, 40);
            }
        }
    }
}
