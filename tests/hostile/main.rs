//! Guests that break the rules of the rings, in both directions: what they did is counted by
//! its reason, their rings go on or stop as they should, and the neighbour whose packets pass
//! through the same worker loses none.

#[path = "../common/mod.rs"]
mod common;

mod addresses;
mod attack;
mod chains;
mod fds;
mod garbage;
mod load;
mod messages;
mod neighbour;
mod offloads;
mod rings;
mod tables;
mod truncated;
mod wire;
