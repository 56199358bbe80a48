//! Compares backends behind the same guests: ringbridge, DPDK's `net_vhost` and the plain
//! rust-vmm way.
//!
//!     cargo bench --bench peers -- [--quick] [--json FILE] [--skip PEER]… [WORD]…
//!
//! Promises: all peers of a cell are measured in the same rounds, one at a time, on the same
//! two CPUs (backend on the first, guest on the second), while the others are stopped; rates
//! are read at the guest, by the same means for every peer; the first peer is measured twice
//! a round, to show what two measurements of the same thing differ by (`spread`). A WORD
//! chooses the cells that have it in their name. Rates are worthless on a busy machine.

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "peers/guest.rs"]
mod guest;
#[path = "peers/pair.rs"]
mod pair;
#[path = "peers/plan.rs"]
mod plan;
#[path = "peers/process.rs"]
mod process;
#[path = "peers/report.rs"]
mod report;
#[path = "peers/rounds.rs"]
mod rounds;

use anyhow::{Context, Result, bail};
use plan::{Budget, Options, Peer};
use std::time::Instant;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|first| first == process::SERVE_REFERENCE) {
        return process::serve_reference(&args[1..]);
    }
    let started = Instant::now();
    let options = Options::parse(&args)?;
    let cpus = ringbridge::sys::allowed_cpus()?;
    let &[backend_cpu, guest_cpu, ..] = &cpus[..] else {
        bail!("backend and guest need a CPU each, and there are {}", cpus.len());
    };
    let bench = rounds::Bench {
        peers: available(&options),
        cpus: (backend_cpu, guest_cpu),
        huge: common::hugepages(pair::HUGE_MIB * 2 * Peer::ALL.len()),
        budget: Budget::new(started, options.quick),
    };
    if bench.peers.is_empty() {
        bail!("no peer is left to measure");
    }
    let (results, failures) = bench.run(&options.groups());
    print!("{}", report::table(&results));
    if let Some(path) = &options.json {
        std::fs::write(path, report::json(&results)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if failures > 0 {
        bail!("{failures} group(s) of cells could not be measured in full");
    }
    Ok(())
}

/// The peers that can run here. Those that cannot are named.
fn available(options: &Options) -> Vec<Peer> {
    let mut peers = Vec::new();
    for peer in Peer::ALL {
        let missing = if options.skip.contains(&peer) {
            Some("not wanted".to_string())
        } else {
            peer.missing()
        };
        match missing {
            Some(why) => println!("# skipped: {} ({why})", peer.name()),
            None => peers.push(peer),
        }
    }
    peers
}
