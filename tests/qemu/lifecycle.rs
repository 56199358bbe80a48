//! One guest that reboots, loses its driver, stops and dies.

use crate::common::bridge::alone;
use crate::common::wait_until;
use crate::host::configure;
use crate::scene::{Scene, socket};
use crate::vm::{LIMIT, Vm, require_guests};
use serde_json::json;
use std::time::Duration;

#[test]
fn a_guest_reboots_three_times() {
    if !require_guests() {
        return;
    }
    let _alone = alone();
    let mut scene = Scene::new(&[]);
    for _ in 0..3 {
        for len in [0, 56, 1400] {
            scene.host.ping(len);
        }
        scene.vm.assert_no_virtio_error();
        scene.vm.begin("reboot -f");
        scene.vm.wait_up();
        scene.vm.sh(&configure("eth0"));
    }
    scene.host.ping(56);
    scene.finish();
}

#[test]
fn the_driver_is_unbound_and_bound_ten_times() {
    if !require_guests() {
        return;
    }
    let _alone = alone();
    let mut scene = Scene::new(&[]);
    let driver = "/sys/bus/virtio/drivers/virtio_net";
    for _ in 0..10 {
        scene.host.ping(56);
        scene.vm.sh(&format!("echo virtio0 >{driver}/unbind; ! ip link show eth0"));
        scene.vm.sh(&format!("echo virtio0 >{driver}/bind; {}", configure("eth0")));
    }
    scene.host.ping(1400);
    scene.finish();
}

#[test]
fn a_guest_that_is_stopped_goes_on_where_it_was() {
    if !require_guests() {
        return;
    }
    let _alone = alone();
    let mut scene = Scene::new(&[]);
    for _ in 0..3 {
        scene.host.ping(56);
        scene.vm.qmp("stop", &json!({}));
        assert!(!scene.host.ping_within(56, Duration::from_millis(300)), "a stopped guest answers");
        scene.vm.qmp("cont", &json!({}));
        scene.host.ping(56);
    }
    let totals = scene.finish();
    // What was sent meanwhile had nobody to go to.
    assert_eq!(totals["ports"][0]["drops"], json!({ "not_connected": 3 }), "{totals}");
}

#[test]
fn another_qemu_takes_the_place_of_one_that_was_killed() {
    if !require_guests() {
        return;
    }
    let _alone = alone();
    let Scene { vm, mut host, backend } = Scene::new(&[]);
    host.ping(56);
    let mapped = backend.mapped();
    vm.kill();
    let gone = || backend.mapped() == mapped - 1;
    assert!(wait_until(LIMIT, gone), "the memory of a dead guest is still mapped");
    let mut vm = Vm::boot(&backend.dir, "next", &[&socket(&backend, 0)]);
    vm.sh(&configure("eth0"));
    host.ping(56);
    Scene { vm, host, backend }.finish();
}
