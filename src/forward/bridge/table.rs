//! Which port an address was seen at last: the table of a learning bridge.
//!
//! Promises: readers wait for nobody and never see half of an entry; only a new or a moved
//! address takes the lock. A port has a quota: addresses that it invents push out none of
//! another's. An address that is written down (static) neither ages nor moves. The hash is keyed:
//! nobody outside can aim at one bucket. Shared by the workers and by who shows it.

#![forbid(unsafe_code)]

use super::super::{MAX_PORTS, PortId};
use crate::wire::Mac;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Entries that an address may be in: two cache lines.
const WAYS: usize = 8;
/// Buckets: room for 32768 addresses.
const BUCKETS: usize = 4096;
/// The port of a static entry has this bit.
const STATIC: u64 = 1 << 32;
/// A key that is in use: no address is all zero without it.
const USED: u64 = 1 << 60;

/// An address in a VLAN, as one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key(u64);

impl Key {
    /// Of `mac` in the VLAN `vid` (0: the one without tags).
    #[inline]
    pub fn new(mac: Mac, vid: u16) -> Self {
        let mut bytes = [0; 8];
        bytes[2..].copy_from_slice(&mac);
        Key(u64::from_be_bytes(bytes) | u64::from(vid) << 48 | USED)
    }

    fn mac(self) -> Mac {
        let [_, _, mac @ ..] = self.0.to_be_bytes();
        mac
    }

    fn vid(self) -> u16 {
        (self.0 >> 48) as u16 & 0xfff
    }
}

/// An entry: the key, and port, kind and time in one number. Who finds the same key before and
/// after it has read the value has the key's value.
#[derive(Debug, Default)]
struct Entry {
    key: AtomicU64,
    /// Low 32 bits: when it was seen last; then the port, and [`STATIC`] among it.
    value: AtomicU64,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Bucket([Entry; WAYS]);

/// What is known of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// Where it is.
    pub port: PortId,
    /// It was written down.
    pub fixed: bool,
    /// When it was seen last, in seconds of the bridge's clock.
    pub seen: u32,
}

impl Known {
    fn value(self) -> u64 {
        let fixed = if self.fixed { STATIC } else { 0 };
        (self.port as u64) << 33 | fixed | u64::from(self.seen)
    }

    fn of(value: u64) -> Self {
        let port = (value >> 33) as usize;
        Known { port, fixed: value & STATIC != 0, seen: value as u32 }
    }

    fn is_old(self, now: u32, age: u32) -> bool {
        !self.fixed && now.saturating_sub(self.seen) > age
    }
}

/// An address as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Learned {
    /// The address.
    pub mac: Mac,
    /// Its VLAN; 0 is the one without tags.
    pub vid: u16,
    /// Where, and since when.
    pub known: Known,
}

/// Why an address was not learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotLearned {
    /// Its port has as many as it may have.
    Quota,
    /// Its bucket is full of others.
    Full,
    /// It is written down for another port.
    Fixed,
}

/// The table.
#[derive(Debug)]
pub struct Table {
    buckets: Box<[Bucket]>,
    seed: u64,
    /// Seconds after which a learned address is forgotten.
    age: u32,
    /// How many addresses each port has.
    counts: Mutex<Box<[u32]>>,
}

impl Table {
    /// An empty one, whose addresses are forgotten after `age` seconds.
    pub fn new(age: u32) -> Self {
        Table {
            buckets: (0..BUCKETS).map(|_| Bucket::default()).collect(),
            seed: RandomState::new().hash_one(0),
            age,
            counts: Mutex::new(vec![0; MAX_PORTS].into()),
        }
    }

    #[inline]
    fn bucket(&self, key: Key) -> &Bucket {
        let product = u128::from(key.0 ^ self.seed) * u128::from(0x9E37_79B9_7F4A_7C15_u64);
        let mixed = product as u64 ^ (product >> 64) as u64;
        &self.buckets[mixed as usize >> 7 & (BUCKETS - 1)]
    }

    /// Where `key` is, if that is known and not too old.
    #[inline]
    pub fn find(&self, key: Key, now: u32) -> Option<Known> {
        for entry in &self.bucket(key).0 {
            if entry.key.load(Ordering::Acquire) == key.0 {
                // Acquire: pairs with the release of the value, so that the key read after it is
                // not older than the one that was there before that value.
                let known = Known::of(entry.value.load(Ordering::Acquire));
                let same = entry.key.load(Ordering::Relaxed) == key.0;
                return (same && !known.is_old(now, self.age)).then_some(known);
            }
        }
        None
    }

    /// `key` was seen at `port` now. Takes no lock if that is where it was, and writes nothing
    /// if it was there this second.
    ///
    /// # Errors
    /// Why it is not learned.
    #[inline]
    pub fn learn(&self, key: Key, port: PortId, quota: u32, now: u32) -> Result<(), NotLearned> {
        for entry in &self.bucket(key).0 {
            if entry.key.load(Ordering::Acquire) == key.0 {
                let value = entry.value.load(Ordering::Acquire);
                let known = Known::of(value);
                if known.fixed {
                    return if known.port == port { Ok(()) } else { Err(NotLearned::Fixed) };
                }
                if known.port == port {
                    if known.seen != now {
                        // If somebody else has changed it meanwhile, that is newer.
                        let fresh = Known { seen: now, ..known }.value();
                        let (yes, no) = (Ordering::Release, Ordering::Relaxed);
                        let _ = entry.value.compare_exchange(value, fresh, yes, no);
                    }
                    return Ok(());
                }
                break;
            }
        }
        self.enter(key, Known { port, fixed: false, seen: now }, quota)
    }

    /// `key` is at `port`, whatever is seen.
    ///
    /// # Errors
    /// Its bucket is full.
    pub fn fix(&self, key: Key, port: PortId) -> Result<(), NotLearned> {
        self.enter(key, Known { port, fixed: true, seen: 0 }, u32::MAX)
    }

    #[cold]
    fn enter(&self, key: Key, known: Known, quota: u32) -> Result<(), NotLearned> {
        let mut counts = self.lock();
        let entries = &self.bucket(key).0;
        let load = |entry: &Entry| {
            (entry.key.load(Ordering::Relaxed), Known::of(entry.value.load(Ordering::Relaxed)))
        };
        let same = entries.iter().position(|entry| load(entry).0 == key.0);
        if let Some(same) = same.filter(|&same| load(&entries[same]).1.fixed && !known.fixed) {
            let port = load(&entries[same]).1.port;
            return if port == known.port { Ok(()) } else { Err(NotLearned::Fixed) };
        }
        if !known.fixed && counts[known.port] >= quota {
            self.forget_old(&mut counts, known.seen);
            if counts[known.port] >= quota {
                return Err(NotLearned::Quota);
            }
        }
        let old = |entry: &Entry| {
            let (used, value) = load(entry);
            used == 0 || value.is_old(known.seen, self.age)
        };
        let free = || entries.iter().position(old).filter(|_| !known.fixed);
        let empty = || entries.iter().position(|entry| load(entry).0 == 0);
        let at = same.or_else(free).or_else(empty).ok_or(NotLearned::Full)?;
        let (used, before) = load(&entries[at]);
        if used != 0 {
            counts[before.port] -= 1;
        }
        counts[known.port] += 1;
        let entry = &entries[at];
        if used != key.0 {
            // Nobody takes the new value for the old key's: without a key there is none.
            entry.key.store(0, Ordering::Release);
        }
        entry.value.store(known.value(), Ordering::Release);
        entry.key.store(key.0, Ordering::Release);
        Ok(())
    }

    /// Make room: forget what is too old.
    fn forget_old(&self, counts: &mut [u32], now: u32) {
        self.remove(counts, |known| known.is_old(now, self.age));
    }

    /// `port` is gone, and all that was there.
    pub fn forget(&self, port: PortId) {
        self.remove(&mut self.lock(), |known| known.port == port);
    }

    fn remove(&self, counts: &mut [u32], gone: impl Fn(Known) -> bool) {
        for entry in self.buckets.iter().flat_map(|bucket| &bucket.0) {
            let known = Known::of(entry.value.load(Ordering::Relaxed));
            if entry.key.load(Ordering::Relaxed) != 0 && gone(known) {
                entry.key.store(0, Ordering::Release);
                counts[known.port] -= 1;
            }
        }
    }

    /// All that is known now.
    pub fn list(&self, now: u32) -> Vec<Learned> {
        let _counts = self.lock();
        let entries = self.buckets.iter().flat_map(|bucket| &bucket.0);
        let known = entries.filter_map(|entry| {
            let key = Key(entry.key.load(Ordering::Relaxed));
            let known = Known::of(entry.value.load(Ordering::Relaxed));
            let learned = Learned { mac: key.mac(), vid: key.vid(), known };
            (key.0 != 0 && !known.is_old(now, self.age)).then_some(learned)
        });
        known.collect()
    }

    fn lock(&self) -> MutexGuard<'_, Box<[u32]>> {
        // Nothing that panics runs under the lock.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn key(n: u32) -> Key {
        let mut mac = [2, 0, 0, 0, 0, 0];
        mac[2..].copy_from_slice(&n.to_be_bytes());
        Key::new(mac, (n % 3) as u16)
    }

    proptest! {
        /// Against a map that forgets by the same rules.
        #[test]
        fn it_knows_what_a_map_knows(
            steps in prop::collection::vec((0_u32..40, 0_usize..4, 0_u32..3, 0_u8..20), 1..400),
        ) {
            let (table, age) = (Table::new(5), 5);
            let mut model: HashMap<u32, (PortId, u32)> = HashMap::new();
            let mut now = 0;
            for (n, port, later, what) in steps {
                now += later;
                if what == 0 {
                    table.forget(port);
                    model.retain(|_, (at, _)| *at != port);
                } else {
                    prop_assert_eq!(table.learn(key(n), port, 1000, now), Ok(()));
                    model.insert(n, (port, now));
                }
                for n in 0..40 {
                    let known = model.get(&n).filter(|(_, seen)| now - seen <= age);
                    let found = table.find(key(n), now).map(|known| (known.port, known.seen));
                    prop_assert_eq!(found, known.copied());
                }
            }
            let mut listed: Vec<_> = table.list(now).iter().map(|l| (l.known.port, l.known.seen)).collect();
            let mut expected: Vec<_> = model.into_values().filter(|(_, seen)| now - seen <= age).collect();
            listed.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(listed, expected);
        }
    }

    #[test]
    fn a_quota_holds_until_addresses_are_old() {
        let table = Table::new(10);
        let learned = |port, from: u32, now| {
            (from..from + 2000).filter(|n| table.learn(key(*n), port, 1024, now).is_ok()).count()
        };
        assert_eq!(table.learn(key(9_000_000), 1, 1024, 0), Ok(()));
        assert_eq!(learned(0, 0, 1), 1024);
        assert_eq!(learned(0, 10_000, 2), 0);
        assert_eq!(table.learn(key(10_000), 0, 1024, 3), Err(NotLearned::Quota));
        assert!(table.find(key(9_000_000), 10).is_some(), "a neighbour's stays");
        assert_eq!(learned(0, 20_000, 12), 1024, "old ones make room");
        table.forget(0);
        assert_eq!(table.list(12), []);
    }

    #[test]
    fn what_is_written_down_stays() {
        let table = Table::new(10);
        assert_eq!(table.learn(key(1), 2, 10, 0), Ok(()));
        table.fix(key(1), 3).unwrap();
        assert_eq!(table.learn(key(1), 2, 10, 0), Err(NotLearned::Fixed));
        assert_eq!(table.learn(key(1), 3, 10, 0), Ok(()));
        let known = table.find(key(1), 1_000_000).unwrap();
        assert_eq!((known.port, known.fixed), (3, true));
        assert_eq!(table.find(Key::new([2, 0, 0, 0, 0, 1], 2), 0), None, "another VLAN");
    }

    #[test]
    fn many_addresses_fit() {
        let table = Table::new(10);
        let learned =
            (0..16_000).filter(|n| table.learn(key(*n), (*n % 16) as usize, 1024, 0).is_ok());
        assert!(learned.count() > 15_700);
    }

    /// Readers and writers at once: an address is at one of the ports that it was ever at.
    #[test]
    fn readers_see_whole_entries() {
        let table = Table::new(1000);
        std::thread::scope(|scope| {
            for worker in 0..2 {
                let table = &table;
                scope.spawn(move || {
                    for round in 0..20_000_u32 {
                        let n = round % 64;
                        let port = (n % 4) as usize + 4 * worker;
                        let _ = table.learn(key(n), port, 1000, round);
                        if round % 1000 == 0 {
                            table.forget(port);
                        }
                    }
                });
            }
            scope.spawn(|| {
                for round in 0..200_000_u32 {
                    let n = round % 64;
                    if let Some(known) = table.find(key(n), round) {
                        assert_eq!(known.port % 4, (n % 4) as usize, "{known:?}");
                    }
                }
            });
        });
        let counts: u32 = table.lock().iter().sum();
        assert_eq!(counts as usize, table.list(0).len());
    }
}
