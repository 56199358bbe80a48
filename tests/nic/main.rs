//! Ports that are interfaces of the host, in network namespaces that the tests make: they need
//! root and `ip`.

#[path = "../common/mod.rs"]
mod common;

mod frames;
mod life;
mod tcp;
mod wire;
