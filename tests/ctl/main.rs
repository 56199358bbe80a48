//! What an operator does to a bridge that runs.

#[path = "../common/mod.rs"]
mod common;
#[path = "../hostile/neighbour.rs"]
#[allow(dead_code)]
mod neighbour;

mod bed;
mod clients;
mod commands;
mod modes;
mod ports;
