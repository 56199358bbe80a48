//! What an operator does to a bridge that runs.

#[path = "../common/mod.rs"]
mod common;
#[path = "../hostile/neighbour.rs"]
mod neighbour;

mod modes;
mod ports;
