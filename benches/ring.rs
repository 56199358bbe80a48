//! Enqueue and dequeue in this process: ringbridge's rings beside the same work done with
//! `virtio-queue`'s own API.
//!
//!     cargo bench --bench ring -- [--once] [WORD]…
//!
//! Promises: both variants move the same packets over equal rings in memory of their own, in
//! turns of 20 ms on one CPU, which resolves differences that separate runs cannot; what a
//! driver does between two bursts is not measured; every burst is checked to have moved every
//! packet. Prints cycles a packet of a burst: 10th percentile and best. `--once` runs each
//! chosen variant for a fixed number of bursts and measures nothing: for callgrind. A WORD
//! chooses what has it in its name (`enqueue`, `1518`, `mergeable`, `virtio-queue`, …).

#[path = "ring/driver.rs"]
mod driver;
#[path = "ring/variants.rs"]
mod variants;

use std::fmt::Write;
use std::time::{Duration, Instant};
use variants::Variant;

/// One comparison.
#[derive(Debug, Clone, Copy)]
struct Work {
    /// To the guest, or from it.
    enqueue: bool,
    size: usize,
    mergeable: bool,
}

impl Work {
    fn name(self) -> String {
        let direction = if self.enqueue { "enqueue" } else { "dequeue" };
        let buffers = if self.mergeable { "mergeable" } else { "plain" };
        format!("{direction} {} {buffers}", self.size)
    }

    fn all() -> impl Iterator<Item = Work> {
        let sizes = [64, 128, 256, 512, 1024, 1518, 9000];
        [true, false].into_iter().flat_map(move |enqueue| {
            sizes.into_iter().flat_map(move |size| {
                [false, true].map(|mergeable| Work { enqueue, size, mergeable })
            })
        })
    }
}

const TURN: Duration = Duration::from_millis(20);
const TURNS: usize = 5;
/// Bursts of `--once`.
const ONCE: usize = 2000;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let once = args.iter().any(|a| a == "--once");
    let words: Vec<&str> = args.iter().filter(|a| *a != "--once").map(String::as_str).collect();
    if let Some(option) = words.iter().find(|w| w.starts_with('-')) {
        eprintln!("{option} is not --once");
        std::process::exit(2);
    }
    // Where it runs matters little, moving between CPUs much.
    if let Some(&cpu) = ringbridge::sys::allowed_cpus().unwrap_or_default().last() {
        let _ = ringbridge::sys::pin_to_cpu(cpu);
    }
    if !once {
        println!("cycles a packet, 10th percentile (best)");
    }
    for work in Work::all() {
        let mut variants = variants::all(work);
        variants.retain(|variant| {
            let name = format!("{} {}", work.name(), variant.name());
            words.iter().all(|word| name.split(' ').any(|part| part == *word))
        });
        if variants.is_empty() {
            continue;
        }
        if once {
            for variant in &mut variants {
                for _ in 0..ONCE {
                    variant.burst();
                }
            }
        } else {
            println!("{}", line(work, &mut variants));
        }
    }
}

/// Rotate the variants, report each.
fn line(work: Work, variants: &mut [Box<dyn Variant>]) -> String {
    let mut cycles = vec![Vec::new(); variants.len()];
    for _ in 0..TURNS {
        for (variant, cycles) in variants.iter_mut().zip(&mut cycles) {
            let end = Instant::now() + TURN;
            while Instant::now() < end {
                cycles.push(variant.burst());
            }
        }
    }
    let mut line = format!("{:26}", work.name());
    for (variant, mut cycles) in variants.iter().zip(cycles) {
        cycles.sort_by(f64::total_cmp);
        let (p10, best) = (cycles[cycles.len() / 10], cycles[0]);
        // Writing to a string cannot fail.
        let _ = write!(line, "  {} {p10:>6.1} ({best:>6.1})", variant.name());
    }
    line
}
