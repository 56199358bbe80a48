//! skeleton
pub mod arch;
pub mod config;
pub mod counters;
pub mod forward;
pub mod memory;
pub mod packet;
pub mod port;
pub mod stats;
pub mod sys;
pub mod vhost_user;
pub mod virtio;
pub mod wire;
pub mod worker;
