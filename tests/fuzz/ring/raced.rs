//! As `main.rs`, but another thread writes the guest's memory all the while, what the input says
//! over and over. Then of the oracle only this is left: no panic, nothing written outside the
//! regions, one outcome for every chain and every packet.
//!
//! A target of its own, because what such an input covers is different each time, and it is slow.

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
    if let Ok(Some(machine)) = machine::Machine::new(&mut input, true) {
        let _ = machine.run(&mut input);
    }
});
