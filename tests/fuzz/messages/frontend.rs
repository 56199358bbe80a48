//! The frontend: makes messages, right and wrong, of the fuzzer's bytes, and sends them.

use crate::fds::{Fds, MEMORY};
use arbitrary::{Result, Unstructured};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// The user address of the honest memory; its guest address is [`GUEST`].
const USER: u64 = 0x7000_0000;
const GUEST: u64 = 0x1_0000;
/// Features that are offered, by position in a mask of 16 bits.
const FEATURES: [u8; 16] = [32, 30, 15, 29, 35, 28, 27, 3, 22, 17, 21, 26, 0, 5, 34, 40];
/// Most bytes of all messages: the answers must fit into the socket, because nobody reads them.
const MOST: usize = 4000;
/// Steps of an input, each of which may send several messages.
const STEPS: usize = 100;

pub struct Frontend<'a> {
    fds: &'a Fds,
    socket: UnixStream,
    sent: usize,
    /// What the guest will write while the session lasts.
    pub scribbles: Vec<(u16, [u8; 8])>,
}

impl<'a> Frontend<'a> {
    pub fn new(fds: &'a Fds, socket: UnixStream) -> Self {
        Frontend { fds, socket, sent: 0, scribbles: Vec::new() }
    }

    /// Send everything that `input` says.
    pub fn run(&mut self, input: &mut Unstructured) -> Result<()> {
        for _ in 0..STEPS {
            if input.is_empty() || self.sent > MOST {
                break;
            }
            self.step(input)?;
        }
        Ok(())
    }

    fn step(&mut self, input: &mut Unstructured) -> Result<()> {
        let step = input.arbitrary::<u8>()?;
        // Asks for an answer?
        let flags = if step & 128 != 0 { 9 } else { 1 };
        let say = |me: &mut Self, request: u32, body: &[u64], fds: &[RawFd]| {
            let body: Vec<u8> = body.iter().flat_map(|word| word.to_le_bytes()).collect();
            me.message(request, flags, body.len() as u32, &body, fds);
        };
        match step % 128 % 24 {
            // Without a body: features, owner, queues, slots, status, resets.
            0 => say(self, [1, 3, 15, 17, 36, 40, 4, 34][pick(input, 8)?], &[], &[]),
            1 => say(self, 2, &[features(input)?], &[]),
            2 => say(self, 16, &[u64::from(input.arbitrary::<u32>()?)], &[]),
            3 => {
                let n = pick(input, 9)?;
                let (mut body, mut fds) = (vec![n as u64], Vec::new());
                for _ in 0..n {
                    let (region, fd) = self.region(input)?;
                    body.extend(region);
                    fds.push(fd);
                }
                self.odd_fds(input, &mut fds)?;
                say(self, 5, &body, &fds);
            }
            4 => {
                let num: u32 =
                    if flags == 1 { 1 << pick(input, 17)? } else { input.arbitrary()? };
                say(self, 8, &[index(input)? | u64::from(num) << 32], &[]);
            }
            5 => {
                let index = index(input)?;
                let mut at = addresses(index);
                // Logged or not.
                at[0] |= (pick(input, 2)? as u64) << 32;
                let which = pick(input, 8)?;
                if let Some(word) = at.get_mut(which) {
                    *word = word.wrapping_add(i64::from(input.arbitrary::<i16>()?) as u64);
                }
                say(self, 9, &at, &[]);
            }
            6 => say(self, 10, &[index(input)? | u64::from(input.arbitrary::<u16>()?) << 32], &[]),
            7 => say(self, 11, &[index(input)?], &[]),
            8 => {
                let request = 12 + pick(input, 3)? as u32;
                let mut fds = vec![self.fd(input)?];
                let mut word = index(input)?;
                if input.arbitrary::<u8>()? < 32 {
                    (word, fds) = (word | 0x100, Vec::new());
                }
                self.odd_fds(input, &mut fds)?;
                say(self, request, &[word], &fds);
            }
            9 => say(self, 18, &[index(input)? | (pick(input, 3)? as u64) << 32], &[]),
            10 => {
                let (region, fd) = self.region(input)?;
                let mut fds = vec![fd];
                self.odd_fds(input, &mut fds)?;
                let body = [&[0][..], &region].concat();
                if pick(input, 2)? == 0 {
                    say(self, 37, &body, &fds);
                } else {
                    say(self, 38, &body, &[]);
                }
            }
            11 => {
                say(self, [19, 20, 39][pick(input, 3)?], &[input.arbitrary::<u32>()?.into()], &[])
            }
            12 => {
                let mut fds = vec![self.fd(input)?];
                self.odd_fds(input, &mut fds)?;
                let (size, offset) = if pick(input, 2)? == 0 {
                    (input.arbitrary::<u16>()?.into(), 0)
                } else {
                    input.arbitrary()?
                };
                say(self, 6, &[size, offset], &fds);
            }
            13 => {
                let mut fds = vec![self.fd(input)?];
                self.odd_fds(input, &mut fds)?;
                say(self, [7, 21, 31, 32, 33][pick(input, 5)?], &[input.arbitrary()?], &fds);
            }
            14 | 15 => self.start(pick(input, 4)? as u64, flags),
            16 => self.table(flags),
            17 | 18 => self.scribbles.push(input.arbitrary()?),
            19 => {
                // Any request, body and size, under a header that is right.
                let request = u32::from(input.arbitrary::<u8>()? % 64);
                let body = self.bytes(input)?;
                let mut fds = Vec::new();
                self.odd_fds(input, &mut fds)?;
                self.message(request, flags, body.len() as u32, &body, &fds);
            }
            20 | 21 => {
                // A header that is wrong.
                let request = u32::from(input.arbitrary::<u8>()? % 64);
                let (flags, size): (u32, u16) = input.arbitrary()?;
                let body = self.bytes(input)?;
                let mut fds = Vec::new();
                self.odd_fds(input, &mut fds)?;
                self.message(request, flags, size.into(), &body, &fds);
            }
            22 => {
                // Honest from the first message to the last.
                say(self, 3, &[], &[]);
                say(self, 1, &[], &[]);
                say(self, 16, &[0x1_ffff], &[]);
                say(self, 2, &[features(input)?], &[]);
            }
            _ => {
                let bytes = self.bytes(input)?;
                self.send(&bytes, &[]);
            }
        }
        Ok(())
    }

    /// `SET_MEM_TABLE` with the honest memory.
    fn table(&mut self, flags: u32) {
        let body = [1, GUEST, MEMORY, USER, 0].map(u64::to_le_bytes).concat();
        self.message(5, flags, body.len() as u32, &body, &[self.fds.get(0)]);
    }

    /// All that it takes to start a ring and enable it.
    fn start(&mut self, index: u64, flags: u32) {
        self.table(flags);
        for (request, body) in [(8, vec![index | 64 << 32]), (9, addresses(index).to_vec())] {
            let body: Vec<u8> = body.iter().flat_map(|word| word.to_le_bytes()).collect();
            self.message(request, flags, body.len() as u32, &body, &[]);
        }
        for (request, word, fd) in [(13, index, Some(5)), (12, index, Some(6))] {
            let fds: Vec<_> = fd.iter().map(|kind| self.fds.get(*kind)).collect();
            self.message(request, flags, 8, &u64::to_le_bytes(word), &fds);
        }
        self.message(18, flags, 8, &(index | 1 << 32).to_le_bytes(), &[]);
    }

    /// A region and its file: the honest one, another part of it, or anything.
    fn region(&self, input: &mut Unstructured) -> Result<([u64; 4], RawFd)> {
        let kind: u8 = input.arbitrary()?;
        let honest = [GUEST, MEMORY, USER, 0];
        let region = match kind >> 4 {
            0..4 => honest,
            4..10 => {
                let at = u64::from(input.arbitrary::<u16>()?) << 4;
                let size = u64::from(input.arbitrary::<u16>()?);
                [GUEST + at, size, USER + at, if kind & 1 == 0 { 0 } else { at }]
            }
            10..13 => {
                let mut region = honest;
                region[pick(input, 4)?] = input.arbitrary()?;
                region
            }
            _ => input.arbitrary()?,
        };
        Ok((region, self.fds.get((kind & 15).into())))
    }

    fn fd(&self, input: &mut Unstructured) -> Result<RawFd> {
        let kind: u8 = input.arbitrary()?;
        // Once in a while the frontend's own end of the connection.
        Ok(if kind == 255 { self.socket.as_raw_fd() } else { self.fds.get(kind.into()) })
    }

    /// Sometimes the fds are not as many as the message asks for.
    fn odd_fds(&self, input: &mut Unstructured, fds: &mut Vec<RawFd>) -> Result<()> {
        match input.arbitrary::<u8>()? {
            0..200 => (),
            200..220 => drop(fds.pop()),
            220..240 => fds.push(self.fd(input)?),
            n => fds.extend((0..usize::from(n - 240) * 8).map(|i| self.fds.get(i))),
        }
        Ok(())
    }

    fn bytes<'i>(&self, input: &mut Unstructured<'i>) -> Result<&'i [u8]> {
        let n = usize::from(input.arbitrary::<u8>()?);
        input.bytes(n.min(input.len()))
    }

    fn message(&mut self, request: u32, flags: u32, size: u32, body: &[u8], fds: &[RawFd]) {
        let header = [request, flags, size].map(u32::to_le_bytes).concat();
        self.send(&[&header, body].concat(), fds);
    }

    fn send(&mut self, bytes: &[u8], fds: &[RawFd]) {
        // It fails when the system finds that there are too many fds in the socket.
        if !bytes.is_empty() && self.socket.send_with_fds(&[bytes], fds).is_ok() {
            self.sent += bytes.len();
        }
    }
}

fn pick(input: &mut Unstructured, n: usize) -> Result<usize> {
    Ok(usize::from(input.arbitrary::<u8>()?) % n)
}

/// A ring of four mostly.
fn index(input: &mut Unstructured) -> Result<u64> {
    let index: u8 = input.arbitrary()?;
    Ok(if index < 240 { u64::from(index % 4) } else { input.arbitrary::<u32>()?.into() })
}

fn features(input: &mut Unstructured) -> Result<u64> {
    let mask: u16 = input.arbitrary()?;
    let bits = FEATURES.iter().enumerate().filter(|(i, _)| mask & 1 << i != 0);
    Ok(bits.map(|(_, bit)| 1 << bit).sum())
}

/// The body of `SET_VRING_ADDR` for one of the honest rings.
fn addresses(index: u64) -> [u64; 5] {
    let at = USER + 0x2000 * (index & 3);
    [index, at, at + 0xc00, at + 0x800, at]
}

/// What lies in the honest memory: four rings of 64 entries, sixteen packets in each transmit
/// ring, 32 buffers in each receive ring.
pub fn memory() -> Vec<u8> {
    let mut memory = vec![0; MEMORY as usize];
    let mut put = |at: usize, bytes: &[u8]| memory[at..at + bytes.len()].copy_from_slice(bytes);
    for index in 0..4 {
        let (at, n) = (0x2000 * index, if index % 2 == 1 { 16_u16 } else { 32 });
        for i in 0..n {
            let addr = GUEST + 0x8000 + 0x400 * u64::from(i % 32);
            let rest = if index % 2 == 1 { 12 + 60 + 32 * u64::from(i) } else { 0x400 | 2 << 32 };
            let desc = u128::from(addr) | u128::from(rest) << 64;
            put(at + 16 * usize::from(i), &desc.to_le_bytes());
            put(at + 0x804 + 2 * usize::from(i), &i.to_le_bytes());
        }
        put(at + 0x802, &n.to_le_bytes());
    }
    memory
}
