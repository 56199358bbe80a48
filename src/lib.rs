//! skeleton
pub mod arch;
pub mod config;
pub mod counters;
pub mod memory;
pub mod packet;
pub mod plot;
#[cfg(feature = "reference")]
pub mod reference;
pub mod sys;
pub mod vhost_user;
pub mod virtio;
pub mod worker;
