//! Size and shape of packet buffers: where each piece of each buffer lies.
//!
//! Promises: the pieces of a buffer cover its capacity, do not touch each other, and lie inside
//! its stride; strides lie inside what was planned.

use crate::frontend::options::{HeaderPlace, Layout};
use crate::frontend::ram::Plan;

/// Bytes of all data pieces but the last: no header of a packet fits one.
const DATA_PIECE: usize = 37;
const LINE: usize = 64;
/// Where a packet begins in a buffer made of one piece: its IP header is then aligned to 4 and
/// its UDP payload to 8, and the first cache line holds everything up to that payload's first
/// 8 bytes.
pub const PACKET_AT: usize = 14;
/// A part of a buffer that gets a descriptor of its own.
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    /// Offset in the buffer's stride.
    pub at: u32,
    /// Bytes.
    pub len: u32,
}

/// Size and shape of a pool's buffers.
#[derive(Debug, Clone)]
pub struct Geometry {
    /// Bytes of a buffer, the virtio-net header included.
    pub capacity: usize,
    /// Bytes of the virtio-net header.
    pub header_len: usize,
    /// How a buffer is cut.
    pub pieces: Vec<Piece>,
    /// From one buffer to the next.
    pub stride: usize,
    /// Buffers.
    pub count: u32,
    /// Offset of the first one in the memory.
    pub at: usize,
}

impl Geometry {
    /// Room for twice `ring_size` buffers of `capacity` bytes, cut as `layout` says.
    pub fn new(
        plan: &mut Plan,
        ring_size: u16,
        capacity: usize,
        header_len: usize,
        layout: Layout,
    ) -> Self {
        let pieces = cut(capacity, header_len, layout);
        let end = pieces.iter().map(|p| p.at as usize + p.len as usize).max().unwrap_or(0);
        // An odd number of lines, so that buffers do not crowd a few sets of the cache.
        let stride = (end.div_ceil(LINE) | 1) * LINE;
        let count = 2 * u32::from(ring_size);
        let at = plan.place(stride * count as usize, LINE);
        Geometry { capacity, header_len, pieces, stride, count, at }
    }
}

/// The pieces of a buffer. Several are apart, at odd addresses and not ascending, so that a
/// backend that runs on past the end of one writes where it is noticed.
fn cut(capacity: usize, header_len: usize, layout: Layout) -> Vec<Piece> {
    let mut lengths: Vec<usize> = match layout.header {
        HeaderPlace::WithData => vec![],
        HeaderPlace::Alone => vec![header_len],
        HeaderPlace::Split(n) => {
            let n = usize::from(n);
            (0..n).map(|i| header_len * (i + 1) / n - header_len * i / n).collect()
        }
    };
    let mut left = capacity - lengths.iter().sum::<usize>();
    for i in 1..=layout.data {
        let with_header = if lengths.is_empty() { header_len } else { 0 };
        let last = i == layout.data;
        let len = if last { left } else { left.min(DATA_PIECE + with_header) };
        if len > 0 {
            lengths.push(len);
        }
        left -= len;
    }
    if let [one] = lengths[..] {
        return vec![Piece { at: (PACKET_AT - header_len) as u32, len: one as u32 }];
    }
    let mut at = 3;
    let mut pieces = Vec::with_capacity(lengths.len());
    for len in lengths.iter().rev() {
        pieces.push(Piece { at: at as u32, len: *len as u32 });
        at += len + 21;
    }
    pieces.reverse();
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layouts() -> Vec<Layout> {
        let places = [HeaderPlace::WithData, HeaderPlace::Alone, HeaderPlace::Split(5)];
        places.iter().flat_map(|&header| [1, 2, 7].map(|data| Layout { header, data })).collect()
    }

    #[test]
    fn pieces_cover_the_buffer_and_never_touch() {
        for layout in layouts() {
            for (capacity, header) in [(12, 12), (13, 12), (76, 12), (2048, 10)] {
                let mut pieces = cut(capacity, header, layout);
                assert_eq!(pieces.iter().map(|p| p.len as usize).sum::<usize>(), capacity);
                assert!(pieces.len() <= layout.pieces());
                pieces.sort_by_key(|p| p.at);
                assert!(pieces.windows(2).all(|w| w[0].at + w[0].len < w[1].at));
            }
        }
    }
}
