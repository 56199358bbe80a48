//! The steps of the virtqueue protocol that need an ordering.
//!
//! Every ordered operation of `arch` takes the step it serves. The product ignores the value
//! (it is a compile-time constant that vanishes); the loom models use it to take one ordering
//! out at a time and to show that each is needed.

/// A step of the protocol that an ordered load, store or fence protects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Device reads `avail.idx` (acquire); pairs with the driver's [`Step::PublishAvailIdx`].
    LoadAvailIdx,
    /// Device writes `used.idx` (release); pairs with the driver's [`Step::LoadUsedIdx`].
    PublishUsedIdx,
    /// Device, between writing `used.idx` and reading `avail.flags` or `used_event` (full);
    /// pairs with the driver's [`Step::RecheckUsed`].
    BeforeNotifyCheck,
    /// Device, between asking for kicks and reading `avail.idx` again (full); pairs with the
    /// driver's [`Step::BeforeKickCheck`].
    RecheckAvail,
    /// Driver writes `avail.idx` (release); pairs with [`Step::LoadAvailIdx`].
    PublishAvailIdx,
    /// Driver reads `used.idx` (acquire); pairs with [`Step::PublishUsedIdx`].
    LoadUsedIdx,
    /// Driver, between writing `avail.idx` and reading `used.flags` or `avail_event` (full);
    /// pairs with [`Step::RecheckAvail`].
    BeforeKickCheck,
    /// Driver, between asking for interrupts and reading `used.idx` again (full); pairs with
    /// [`Step::BeforeNotifyCheck`].
    RecheckUsed,
}
