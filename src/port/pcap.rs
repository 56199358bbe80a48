//! Packets from a capture file (pcap or pcapng, Ethernet), and to one (pcap).
//!
//! Promises: the input is read into memory when it is opened, so the datapath never reads a
//! file; at its end the reader yields no packets or starts over. The output is buffered and
//! reaches the file at least once a second while packets are sent, and whenever
//! [`Writer::flush`] is called (before a worker sleeps, and at the end). An output that fails
//! is logged once; from then on its packets are counted as [`Reason::OutputError`]. A slow disk
//! does stall the worker: this port is for tests and captures, not for speed.

#![forbid(unsafe_code)]

mod input;
mod pace;

use crate::counters::{QueueCounters, Reason};
use crate::offload::{Able, Finisher, deliver};
use crate::packet::{BURST, BURST_BYTES, MAX_PACKET, Packets, Source};
use input::Input;
use pace::Pace;
use pcap_file::pcap::PcapHeader;
use pcap_file::{Endianness, PcapError};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often the output reaches the file, at least.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// Why a capture file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum PcapOpenError {
    /// The input could not be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The output could not be created.
    #[error("cannot write {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// Something else.
    #[error("{path} is not a pcap file; give a capture such as tcpdump -w makes")]
    NotPcap {
        /// The file.
        path: PathBuf,
    },
    /// Packets of another kind than Ethernet's.
    #[error("{path} has link type {link}; only Ethernet (1) can be sent")]
    LinkType {
        /// The file.
        path: PathBuf,
        /// Its link type, as registered by tcpdump.org.
        link: u32,
    },
}

/// The receive half: the packets of a file.
#[derive(Debug)]
pub struct Reader {
    file: Arc<[u8]>,
    frames: Vec<Range<usize>>,
    next: usize,
    repeat: bool,
    pace: Option<Pace>,
    refused: [(Reason, u64); 2],
}

impl Reader {
    /// Read `path` whole; start over at its end if `repeat`; `rate` packets a second.
    ///
    /// Frames shorter than 14 or longer than 65535 bytes are left out ([`Reader::refused`]); a
    /// file that ends within a packet is used up to there. Both are logged.
    ///
    /// # Errors
    /// The file cannot be read, or is not what we can send.
    pub fn open(path: &Path, repeat: bool, rate: Option<u64>) -> Result<Self, PcapOpenError> {
        let Input { file, frames, refused } = Input::read(path)?;
        let pace = rate.map(Pace::new);
        Ok(Reader { file: file.into(), frames, next: 0, repeat, pace, refused })
    }

    /// How many frames of the file are left out, and why.
    pub fn refused(&self) -> [(Reason, u64); 2] {
        self.refused
    }

    /// The next packets, up to `max`, in `packets`, which is cleared.
    pub fn receive(&mut self, packets: &mut Packets, max: usize) {
        packets.lend(&self.file);
        let max = self.pace.as_mut().map_or(max, |pace| pace.due(max));
        self.fill(packets, max);
        if let Some(pace) = &mut self.pace {
            pace.sent(packets.len());
        }
    }

    /// Will there be packets, though there are none now?
    pub fn is_waiting(&self) -> bool {
        self.pace.is_some() && (self.repeat || self.next < self.frames.len())
    }

    fn fill(&mut self, packets: &mut Packets, max: usize) {
        while packets.len() < max.min(BURST) && packets.bytes() < BURST_BYTES {
            if self.next == self.frames.len() && self.repeat {
                self.next = 0;
            }
            let Some(frame) = self.frames.get(self.next) else { return };
            packets.push_lent(frame.clone());
            self.next += 1;
        }
    }
}

impl Source for Reader {
    fn complete(&mut self) {
        // The file stays in memory.
    }
}

/// The transmit half: packets into a file, or into nothing.
#[derive(Debug)]
pub struct Writer {
    output: Option<Output>,
    finisher: Option<Box<Finisher>>,
}

#[derive(Debug)]
struct Output {
    path: PathBuf,
    file: BufWriter<File>,
    frame: Vec<u8>,
    flushed: Instant,
    failed: bool,
}

impl Writer {
    /// Create `path`, or replace what is there; without one, what is sent is discarded and
    /// counted as sent.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(path: Option<&Path>) -> Result<Self, PcapOpenError> {
        Ok(Writer { output: path.map(Output::create).transpose()?, finisher: None })
    }

    /// Send the packets that `which` numbers and count them.
    pub fn send(&mut self, packets: &Packets, which: &[u8], counters: &QueueCounters) {
        if self.output.is_some() && packets.has_offloads() {
            // What is in a file nobody finishes later.
            let mut finisher = self.finisher.take();
            deliver(packets, which, Able::NOTHING, &mut finisher, |packets, which| {
                self.write(packets, which, counters);
            });
            self.finisher = finisher;
        } else {
            self.write(packets, which, counters);
        }
    }

    fn write(&mut self, packets: &Packets, which: &[u8], counters: &QueueCounters) {
        let numbers = which.iter().map(|&i| i as usize);
        let Some(output) = &mut self.output else {
            counters.packets.add(which.len() as u64);
            counters.bytes.add(numbers.map(|i| packets.packet_len(i) as u64).sum());
            return;
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (mut sent, mut bytes) = (0, 0);
        for i in numbers.take_while(|&i| output.write(packets, i, now)) {
            sent += 1;
            bytes += packets.packet_len(i) as u64;
        }
        counters.packets.add(sent);
        counters.bytes.add(bytes);
        // After a failure all others fail, too.
        counters.lost(Reason::OutputError, which.len() as u64 - sent);
        if output.flushed.elapsed() >= FLUSH_INTERVAL {
            output.flush();
        }
    }

    /// Bring everything sent so far to the file.
    pub fn flush(&mut self) {
        if let Some(output) = &mut self.output {
            output.flush();
        }
    }
}

impl Output {
    fn create(path: &Path) -> Result<Self, PcapOpenError> {
        let refused = |source| PcapOpenError::Write { path: path.into(), source };
        let mut file = BufWriter::new(File::create(path).map_err(refused)?);
        let header = PcapHeader { endianness: Endianness::native(), ..PcapHeader::default() };
        header.write_to(&mut file).map_err(|error| refused(io_error(error)))?;
        let frame = vec![0; MAX_PACKET];
        Ok(Output { path: path.into(), file, frame, flushed: Instant::now(), failed: false })
    }

    /// Write packet `i`, sent at `now`; false if it is lost.
    fn write(&mut self, packets: &Packets, i: usize, now: Duration) -> bool {
        // After a failure the file may end within a packet: nothing may follow.
        if self.failed {
            return false;
        }
        let frame = &mut self.frame[..packets.packet_len(i)];
        packets.copy_out(i, frame);
        let len = frame.len() as u32;
        // Seconds (until 2106), microseconds, bytes here, bytes on the wire: in the order of
        // bytes that the file's header has.
        let record = [now.as_secs() as u32, now.subsec_micros(), len, len].map(u32::to_ne_bytes);
        let result = self.file.write_all(record.as_flattened());
        let result = result.and_then(|()| self.file.write_all(frame));
        self.check(&result)
    }

    fn flush(&mut self) {
        self.flushed = Instant::now();
        if !self.failed {
            let result = self.file.flush();
            self.check(&result);
        }
    }

    /// Note and log the first failure.
    fn check(&mut self, result: &io::Result<()>) -> bool {
        if let Err(error) = result {
            self.failed = true;
            tracing::error!("cannot write {}: {error}; its packets are lost", self.path.display());
        }
        result.is_ok()
    }
}

/// The I/O error within: writing has no other.
fn io_error(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests;
