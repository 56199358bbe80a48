//! Ports: what has queues.

pub mod generator;
pub mod pcap;
