//! Loom models of the virtqueue protocol: src/virtio/order.rs, the very file, over loom's atomics.
//!
//! Each model is explored with every interleaving and every value that a relaxed load may
//! still see, and holds. Then each [`Step`] is taken out (its acquire or release made relaxed,
//! its fence left away) and the models that rest on it must fail, for the reason expected.
//!
//! What loom cannot show: it never lets a load see a store that comes later in the exploration,
//! so the other half of acquire and release (an earlier *load* is not delayed past the release,
//! a later *store* not made before the acquire) is not modelled. That half keeps a device
//! from reading a descriptor that the driver already reuses; it comes with the same
//! instructions. Nor does a run on x86 or under emulation show it.
//!
//! The inbox of a worker is modelled after src/worker/inbox.rs, which holds more than loom can run:
//! the model is a transcription of `post`, `take` and `clear_wake`.

mod arch;
mod doorbell;
mod inbox;
#[path = "../../src/virtio/order.rs"]
mod order;
mod publish;
mod ring;
mod wake;

use arch::{Step, taking_out};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Switches of thread that a model of two threads may force, beside those where a thread ends or
/// waits. Every step taken out is found with 2.
const OF_TWO: usize = 3;
/// The same for a model of three threads, which has many more executions.
const OF_THREE: usize = 2;

fn explore(preemptions: usize, model: fn()) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// What a broken protocol looks like.
#[derive(Clone, Copy)]
enum Failure {
    /// A value was read that its publication should have made visible.
    Stale,
    /// A thread waits for a signal that never comes.
    Lost,
}

/// The model fails, and in the way that is expected.
fn fails(failure: Failure, model: fn()) {
    let result = catch_unwind(AssertUnwindSafe(|| explore(2, model)));
    let panic = result.expect_err("the model holds: it cannot see what is wrong");
    let message = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or_default();
    let expected = match failure {
        Failure::Stale => "stale",
        Failure::Lost => "deadlock",
    };
    assert!(message.contains(expected), "it fails otherwise: {message}");
}

fn fails_without(step: Step, failure: Failure, model: fn()) {
    taking_out(step, || fails(failure, model));
}

#[test]
fn chains_are_visible_when_avail_idx_is() {
    explore(OF_TWO, publish::avail);
}

#[test]
fn chains_need_the_release_of_avail_idx() {
    fails_without(Step::PublishAvailIdx, Failure::Stale, publish::avail);
}

#[test]
fn chains_need_the_acquire_of_avail_idx() {
    fails_without(Step::LoadAvailIdx, Failure::Stale, publish::avail);
}

#[test]
fn used_entries_are_visible_when_used_idx_is() {
    explore(OF_TWO, publish::used);
}

#[test]
fn used_entries_need_the_release_of_used_idx() {
    fails_without(Step::PublishUsedIdx, Failure::Stale, publish::used);
}

#[test]
fn used_entries_need_the_acquire_of_used_idx() {
    fails_without(Step::LoadUsedIdx, Failure::Stale, publish::used);
}

#[test]
fn no_interrupt_is_lost() {
    explore(OF_TWO, wake::interrupt::<false>);
    explore(OF_TWO, wake::interrupt::<true>);
}

#[test]
fn one_fence_serves_the_rings_published_before_it() {
    explore(OF_THREE, wake::interrupts_of_two_rings::<false>);
    explore(OF_THREE, wake::interrupts_of_two_rings::<true>);
}

#[test]
fn interrupts_need_the_fence_before_the_notify_check() {
    let step = Step::BeforeNotifyCheck;
    fails_without(step, Failure::Lost, wake::interrupt::<false>);
    fails_without(step, Failure::Lost, wake::interrupt::<true>);
    fails_without(step, Failure::Lost, wake::interrupts_of_two_rings::<false>);
    fails_without(step, Failure::Lost, wake::interrupts_of_two_rings::<true>);
}

#[test]
fn interrupts_need_the_fence_before_the_drivers_recheck() {
    fails_without(Step::RecheckUsed, Failure::Lost, wake::interrupt::<false>);
    fails_without(Step::RecheckUsed, Failure::Lost, wake::interrupt::<true>);
}

#[test]
fn no_kick_is_lost() {
    explore(OF_TWO, wake::kick::<false>);
    explore(OF_TWO, wake::kick::<true>);
}

#[test]
fn no_kick_is_lost_by_a_worker_with_two_rings() {
    explore(OF_THREE, wake::kicks_of_two_rings::<false>);
    explore(OF_THREE, wake::kicks_of_two_rings::<true>);
}

#[test]
fn kicks_need_the_fence_before_the_kick_check() {
    let step = Step::BeforeKickCheck;
    fails_without(step, Failure::Lost, wake::kick::<false>);
    fails_without(step, Failure::Lost, wake::kick::<true>);
    fails_without(step, Failure::Lost, wake::kicks_of_two_rings::<false>);
    fails_without(step, Failure::Lost, wake::kicks_of_two_rings::<true>);
}

#[test]
fn kicks_need_the_fence_before_the_devices_recheck() {
    let step = Step::RecheckAvail;
    fails_without(step, Failure::Lost, wake::kick::<false>);
    fails_without(step, Failure::Lost, wake::kick::<true>);
    fails_without(step, Failure::Lost, wake::kicks_of_two_rings::<false>);
    fails_without(step, Failure::Lost, wake::kicks_of_two_rings::<true>);
}

#[test]
fn no_command_is_lost_and_no_kick_beside_it() {
    explore(OF_THREE, inbox::commands_and_a_kick::<false>);
}

/// Why `Inbox::clear_wake` comes before the look into the inbox.
#[test]
fn a_wake_fd_that_is_cleared_after_the_look_loses_commands() {
    fails(Failure::Lost, inbox::commands_and_a_kick::<true>);
}
