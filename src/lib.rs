//! skeleton
pub mod arch;
pub mod config;
pub mod control;
pub mod counters;
pub mod memory;
pub mod packet;
pub mod sys;
pub mod vhost_user;
pub mod virtio;
pub mod worker;
