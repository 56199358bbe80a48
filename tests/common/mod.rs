//! What integration tests and benches share: tools that may be missing, temporary folders,
//! waits with a limit, hugepages, and `dpdk-testpmd` as a peer.
//!
//! Promises: nothing here waits without a limit, and nothing that was started outlives the
//! value that stands for it.

// Each test and bench is a crate of its own and uses a part of this.
#![allow(dead_code)]

pub mod backend;
pub mod bridge;
pub mod net;
pub mod testpmd;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Is `tool` in the PATH? If not: say so, and fail if `RINGBRIDGE_REQUIRE=all`.
pub fn require(tool: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(tool).is_file()));
    required(found, &format!("{tool} is not installed"))
}

/// Are we root? If not: say so, and fail if `RINGBRIDGE_REQUIRE=all`.
pub fn require_root() -> bool {
    required(is_root(), "not root")
}

/// A skip has its reason printed, and is a failure where everything is required.
pub fn required(found: bool, missing: &str) -> bool {
    if !found {
        let all = std::env::var_os("RINGBRIDGE_REQUIRE").is_some_and(|v| v == "all");
        assert!(!all, "{missing}, and RINGBRIDGE_REQUIRE=all");
        eprintln!("skipped: {missing}");
    }
    found
}

fn is_root() -> bool {
    // SAFETY: takes nothing, cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Poll `condition` until it holds or `limit` has passed. Returns whether it came to hold.
#[must_use]
pub fn wait_until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A folder that is removed with everything in it. Its path is short enough for sockets.
pub struct TempDir(tempfile::TempDir);

impl TempDir {
    /// A new, empty one.
    pub fn new() -> Self {
        TempDir(
            tempfile::Builder::new().prefix("ringbridge-").tempdir().expect("a temporary folder"),
        )
    }

    /// The path of `name` in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// See to it that `mib` MiB of 2-MiB hugepages are free: reserves more if we are root.
pub fn hugepages(mib: usize) -> bool {
    let pool = Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB");
    let read = |name: &str| -> usize {
        let text = std::fs::read_to_string(pool.join(name)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    };
    let want = mib.div_ceil(2);
    let missing = want.saturating_sub(read("free_hugepages"));
    if missing > 0 && is_root() {
        let total = read("nr_hugepages") + missing;
        let _ = std::fs::write(pool.join("nr_hugepages"), total.to_string());
    }
    read("free_hugepages") >= want
}
