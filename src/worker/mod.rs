//! Workers: threads that own queues and move packets between them.
//!
//! `turn` is the loop, `sleep` how an idle one waits, `inbox` how control reaches it. A worker
//! owns its queues alone; control asks a ring back to change anything about it.

mod inbox;
mod sleep;
mod turn;

pub use crate::forward::PortId;
pub use inbox::{Command, Inbox};
pub use turn::{Receiver, Worker};
