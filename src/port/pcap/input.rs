//! The frames of a capture file: classic pcap of either byte order and clock, and pcapng.
//!
//! Promises: a file is read whole, and its frames are ranges of it; frames shorter than 14 or
//! longer than 65535 bytes are left out and counted; a file that ends within a packet is used up
//! to there, and that is logged. Used by the reader.

use super::PcapOpenError;
use crate::counters::Reason;
use crate::packet::{MAX_PACKET, MIN_PACKET};
use pcap_file::pcap::PcapParser;
use pcap_file::pcapng::{Block, PcapNgParser};
use pcap_file::{DataLink, PcapError};
use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;

/// What a pcapng file begins with, in either byte order.
const PCAPNG: [u8; 4] = [0x0A, 0x0D, 0x0D, 0x0A];

/// A file and where its frames lie in it.
pub struct Input {
    /// The file.
    pub file: Vec<u8>,
    /// Its frames.
    pub frames: Vec<Range<usize>>,
    /// Frames that were left out.
    pub refused: [(Reason, u64); 2],
}

impl Input {
    /// Read `path`.
    pub fn read(path: &Path) -> Result<Self, PcapOpenError> {
        let file = std::fs::read(path)
            .map_err(|source| PcapOpenError::Read { path: path.into(), source })?;
        let mut frames = Frames { file: &file, ranges: Vec::new(), refused: [0; 2] };
        let read = if file.starts_with(&PCAPNG) { frames.pcapng(path) } else { frames.pcap(path) };
        let whole = read?;
        let Frames { ranges, refused: [short, long], .. } = frames;
        if !whole {
            let usable = ranges.len();
            tracing::warn!("{} ends within a packet; {usable} are used", path.display());
        }
        if short + long > 0 {
            let (path, left_out) = (path.display(), short + long);
            tracing::warn!("{path}: {left_out} frames are not of 14 to 65535 bytes, left out");
        }
        let refused = [(Reason::Runt, short), (Reason::TooLong, long)];
        Ok(Input { frames: ranges, refused, file })
    }
}

struct Frames<'a> {
    file: &'a [u8],
    ranges: Vec<Range<usize>>,
    refused: [u64; 2],
}

impl<'a> Frames<'a> {
    fn add(&mut self, frame: &[u8]) {
        let start = frame.as_ptr().addr() - self.file.as_ptr().addr();
        match frame.len() {
            ..MIN_PACKET => self.refused[0] += 1,
            MIN_PACKET..=MAX_PACKET => self.ranges.push(start..start + frame.len()),
            _ => self.refused[1] += 1,
        }
    }

    /// Both answer whether the file ends where a packet does.
    fn pcap(&mut self, path: &Path) -> Result<bool, PcapOpenError> {
        let (mut rest, parser) =
            PcapParser::new(self.file).map_err(|_| PcapOpenError::NotPcap { path: path.into() })?;
        check(path, parser.header().datalink)?;
        while !rest.is_empty() {
            let Ok((after, packet)) = parser.next_raw_packet(rest) else { return Ok(false) };
            let Cow::Borrowed(frame) = packet.data else { return Ok(false) };
            self.add(frame);
            rest = after;
        }
        Ok(true)
    }

    fn pcapng(&mut self, path: &Path) -> Result<bool, PcapOpenError> {
        let (mut rest, mut parser) = PcapNgParser::new(self.file)
            .map_err(|_| PcapOpenError::NotPcap { path: path.into() })?;
        while !rest.is_empty() {
            let (after, block) = match parser.next_block(rest) {
                Ok(next) => next,
                Err(PcapError::IncompleteBuffer) => return Ok(false),
                Err(_) => return Err(PcapOpenError::NotPcap { path: path.into() }),
            };
            rest = after;
            let frame: &'a [u8] = match block {
                Block::InterfaceDescription(interface) => {
                    check(path, interface.linktype)?;
                    continue;
                }
                Block::EnhancedPacket(packet) => borrowed(&packet.data),
                Block::Packet(packet) => borrowed(&packet.data),
                Block::SimplePacket(packet) => {
                    let limit = parser.interfaces().first().map_or(0, |i| i.snaplen);
                    let captured = match limit {
                        0 => packet.original_len,
                        limit => packet.original_len.min(limit),
                    };
                    // What follows it is padding.
                    let data = borrowed(&packet.data);
                    &data[..data.len().min(captured as usize)]
                }
                _ => continue,
            };
            self.add(frame);
        }
        Ok(true)
    }
}

/// The parser copies nothing.
fn borrowed<'a>(data: &Cow<'a, [u8]>) -> &'a [u8] {
    match data {
        Cow::Borrowed(data) => data,
        Cow::Owned(_) => &[],
    }
}

fn check(path: &Path, link: DataLink) -> Result<(), PcapOpenError> {
    if link == DataLink::ETHERNET {
        return Ok(());
    }
    Err(PcapOpenError::LinkType { path: path.into(), link: link.into() })
}
