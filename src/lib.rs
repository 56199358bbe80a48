//! skeleton
pub mod arch;
pub mod config;
pub mod counters;
pub mod frontend;
pub mod memory;
pub mod packet;
pub mod sys;
pub mod vhost_user;
pub mod virtio;
pub mod worker;
