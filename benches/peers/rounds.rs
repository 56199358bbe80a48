//! Rounds: every peer of a cell once, ringbridge (or who is first) twice.

use crate::pair::{Pair, Setup};
use crate::plan::{Budget, Group, Peer};
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// What all groups have in common.
pub struct Bench {
    pub peers: Vec<Peer>,
    pub cpus: (usize, usize),
    pub huge: bool,
    pub budget: Budget,
}

/// The windows of one peer, by round.
type Rounds = Vec<Vec<f64>>;

/// One measured cell.
pub struct Cell {
    pub group: Group,
    pub size: usize,
    /// By peer's name.
    rates: BTreeMap<&'static str, Rounds>,
    /// The first peer again, at the other end of each round.
    again: Rounds,
    first: Peer,
}

impl Bench {
    /// Measure all groups. Returns the cells, and how many groups failed, at least in part.
    pub fn run(&self, groups: &[Group]) -> (Vec<Cell>, usize) {
        let mut cells = Vec::new();
        let mut failures = 0;
        let mut told = BTreeSet::new();
        for (i, group) in groups.iter().enumerate() {
            eprintln!("{} of {}: {}", i + 1, groups.len(), group.name());
            let end = self.budget.share(groups.len() - i - 1);
            let (mut pairs, failed) = self.start(group);
            for pair in &pairs {
                if told.insert((pair.peer().name(), group.direction.name(), group.guest.name())) {
                    pair.command_lines().iter().for_each(|line| println!("# {line}"));
                }
            }
            failures += usize::from(failed);
            if let Err(error) = self.measure(group, &mut pairs, end, &mut cells) {
                eprintln!("{}: {error:#}", group.name());
                failures += 1;
            }
        }
        (cells, failures)
    }

    /// A pair for each peer, all paused. Those that fail are named and left out.
    fn start(&self, group: &Group) -> (Vec<Pair>, bool) {
        let start = |&peer: &Peer| {
            let (group, cpus, huge) = (group.clone(), self.cpus, self.huge);
            let mut pair = Pair::start(Setup { peer, group, cpus, huge })?;
            pair.pause();
            anyhow::Ok(pair)
        };
        // Starting is mostly waiting.
        let started: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                self.peers.iter().map(|peer| scope.spawn(move || start(peer))).collect();
            threads.into_iter().map(|t| t.join().expect("a start that panicked")).collect()
        });
        let mut failed = false;
        let mut pairs = Vec::new();
        for (peer, pair) in self.peers.iter().zip(started) {
            match pair {
                Ok(pair) => pairs.push(pair),
                Err(error) => {
                    eprintln!("{}: {}: {error:#}", group.name(), peer.name());
                    failed = true;
                }
            }
        }
        (pairs, failed)
    }

    fn measure(
        &self,
        group: &Group,
        pairs: &mut [Pair],
        end: Option<Instant>,
        cells: &mut Vec<Cell>,
    ) -> Result<()> {
        let Some(first) = pairs.first().map(Pair::peer) else { return Ok(()) };
        for (i, &size) in group.sizes.iter().enumerate() {
            let left = (group.sizes.len() - i) as u32;
            let now = Instant::now();
            let end = end.map(|end| now + end.saturating_duration_since(now) / left);
            for pair in pairs.iter_mut() {
                let name = pair.peer().name();
                pair.resume();
                pair.set_size(size).with_context(|| format!("{name} at {size} bytes"))?;
                pair.pause();
            }
            let mut cell = Cell {
                group: group.clone(),
                size,
                rates: BTreeMap::new(),
                again: Vec::new(),
                first,
            };
            let mut longest = Duration::ZERO;
            for round in 0..self.budget.rounds {
                let begun = Instant::now();
                if round > 0 && end.is_some_and(|end| begun + longest > end) {
                    break;
                }
                cell.round(pairs, round, self.budget.windows)
                    .with_context(|| format!("at {size} bytes"))?;
                longest = longest.max(begun.elapsed());
            }
            cells.push(cell);
        }
        Ok(())
    }
}

impl Cell {
    /// Once through the peers, forwards or backwards, and the first one at both ends.
    fn round(&mut self, pairs: &mut [Pair], round: usize, windows: usize) -> Result<()> {
        let mut order: Vec<_> = (0..pairs.len()).chain([0]).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for (turn, &i) in order.iter().enumerate() {
            let pair = &mut pairs[i];
            let name = pair.peer().name();
            let rates = pair.measure(windows).with_context(|| name)?;
            if i == 0 && turn > 0 {
                self.again.push(rates);
            } else {
                self.rates.entry(name).or_default().push(rates);
            }
        }
        Ok(())
    }

    /// The best window of `peer`, in Mpps.
    pub fn best(&self, peer: Peer) -> Option<f64> {
        self.rates.get(peer.name())?.iter().flatten().copied().reduce(f64::max)
    }

    /// The median window of `peer`, in Mpps.
    pub fn median(&self, peer: Peer) -> Option<f64> {
        median(self.rates.get(peer.name())?.iter().flatten().copied().collect())
    }

    /// How many times `other` ringbridge is: the median of the rounds' ratios of best windows.
    pub fn ratio(&self, other: Peer) -> Option<f64> {
        let ours = self.rates.get(Peer::Ringbridge.name())?;
        median(ratios(ours, self.rates.get(other.name())?))
    }

    /// By how much the first peer differs from itself, in the worst round: 0.1 is 10 %.
    pub fn spread(&self) -> Option<f64> {
        let ratios = ratios(self.rates.get(self.first.name())?, &self.again);
        ratios.into_iter().map(|ratio| (ratio - 1.0).abs()).reduce(f64::max)
    }
}

fn ratios(these: &Rounds, those: &Rounds) -> Vec<f64> {
    let best = |windows: &Vec<f64>| windows.iter().copied().fold(0.0, f64::max);
    these.iter().zip(those).map(|(a, b)| best(a) / best(b)).collect()
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        Some(values[middle])
    } else {
        Some(f64::midpoint(*values.get(middle.checked_sub(1)?)?, values[middle]))
    }
}
