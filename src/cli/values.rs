//! The CPUs that several commands are given, and the values that all of them have.
//!
//! Promises: the checks look at the machine and change nothing.

#![forbid(unsafe_code)]

use super::UsageError;
use crate::sys;

pub use crate::config::values::{
    ValueError, cpu, duration, number, queues, ring_size, size, socket_path, switch,
};

/// The CPUs there are.
pub fn available_cpus() -> Result<Vec<usize>, UsageError> {
    sys::allowed_cpus().map_err(UsageError::Cpus)
}

/// `cpus` are among those `there`, none twice.
pub fn check_cpus(cpus: &[usize], there: &[usize]) -> Result<(), UsageError> {
    for (i, &cpu) in cpus.iter().enumerate() {
        if !there.contains(&cpu) {
            return Err(UsageError::NoCpu { cpu, there: list(there) });
        }
        if cpus[..i].contains(&cpu) {
            return Err(UsageError::DuplicateCpu(cpu));
        }
    }
    Ok(())
}

/// Ascending numbers as `0-3,8`.
fn list(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b);
    let run = |run: &[usize]| match run {
        [first, .., last] => format!("{first}-{last}"),
        _ => run.iter().map(usize::to_string).collect(),
    };
    runs.map(run).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_checked_against_those_there_are() {
        let there = [0, 1, 2, 3, 6, 8, 9];
        assert!(check_cpus(&[0, 9, 6], &there).is_ok());
        let missing = check_cpus(&[0, 5], &there).unwrap_err().to_string();
        assert_eq!(missing, "CPU 5 does not exist; there are 0-3,6,8-9");
        let twice = check_cpus(&[2, 0, 2], &there).unwrap_err().to_string();
        assert_eq!(twice, "CPU 2 is given twice; every thread needs one of its own");
    }
}
