//! Two rings of a guest whose every byte of memory is the fuzzer's: what it writes into its
//! transmit ring comes back to its receive ring, as through a hairpin, and packets of an honest
//! guest come besides.
//!
//! An input is the configuration of a `machine::Machine` and then steps, a byte for which and some
//! for how. The corpus was begun with honest rings, written by hand in this form. What must hold
//! after every step: no panic, no access outside the mappings (guard pages), no byte changed
//! that the guest has not made available (`oracle`) and, where a log is kept, none that is not
//! in it; one outcome for every chain and every packet. An input that takes ten seconds is a
//! failure, too (`-timeout=10`). See `raced.rs` for memory that changes within a step.

#![no_main]

mod layout;
mod machine;
mod oracle;
mod scribbler;
mod source;
mod world;

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut input = Unstructured::new(data);
    if let Ok(Some(machine)) = machine::Machine::new(&mut input, false) {
        let _ = machine.run(&mut input);
    }
});
