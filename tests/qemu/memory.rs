//! Memory that is plugged in, that lies below and above 4 GiB, that is made of huge pages.

use crate::common::bridge::alone;
use crate::common::{hugepages, required, wait_until};
use crate::scene::{Scene, log_of};
use crate::vm::{LIMIT, Vm, require_guests};
use serde_json::json;

#[test]
fn a_dimm_is_plugged_in_under_traffic() {
    if !require_guests() {
        return;
    }
    let _alone = alone();
    let mut scene = Scene::new(&["--", "-m", "slots=2,maxmem=2G"]);
    for (i, size) in [(0, 256), (1, 128)] {
        let before = total(&mut scene.vm);
        scene.host.ping(1000);
        plug(&mut scene.vm, i, size);
        for _ in 0..100 {
            scene.host.ping(1000);
        }
        let plugged = wait_until(LIMIT, || total(&mut scene.vm) > before + (size << 10) / 2);
        assert!(plugged, "the guest has no more memory than before");
        scene.host.ping(1000);
    }
    // Files fill the old memory and then the new; what is received and sent meanwhile lies there.
    scene.vm.sh("mount -t tmpfs -o size=90% none /mnt || mkdir /mnt && mount -t tmpfs none /mnt");
    scene.vm.sh("dd if=/dev/zero of=/mnt/fill bs=1M count=400 2>/dev/null || true");
    for _ in 0..300 {
        scene.host.ping(1400);
    }
    scene.finish();
}

/// Plug in a DIMM of `mib`, the guest's `i`th.
pub fn plug(vm: &mut Vm, i: usize, mib: u64) {
    let (memory, dimm) = (format!("plugged{i}"), format!("dimm{i}"));
    let object = json!({ "qom-type": "memory-backend-memfd", "id": memory,
                         "size": mib << 20, "share": true });
    vm.qmp("object-add", &object);
    vm.qmp("device_add", &json!({ "driver": "pc-dimm", "id": dimm, "memdev": memory }));
}

/// The guest's memory in KiB.
fn total(vm: &mut Vm) -> u64 {
    let said = vm.sh("grep MemTotal /proc/meminfo");
    said.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn huge_pages_below_and_above_4_gib() {
    // This machine type has its first 2 GiB below, the rest above.
    const MIB: usize = 2816;
    if !require_guests() || !required(hugepages(MIB), "no 2.75 GiB of hugepages") {
        return;
    }
    let _alone = alone();
    let mut scene = Scene::new(&["--hugepages", "--memory", &MIB.to_string()]);
    for len in [0, 56, 1400] {
        (0..50).for_each(|_| scene.host.ping(len));
    }
    let memory = "memory: 2816 MiB, 2 region(s)".to_string();
    assert!(log_of(&scene.backend, 0).contains(&memory), "{}", scene.backend.log());
    let Scene { mut vm, host, backend } = scene;
    vm.assert_no_virtio_error();
    let mapped = backend.mapped();
    vm.kill();
    assert!(wait_until(LIMIT, || backend.mapped() == mapped - 2), "still mapped");
    drop(host);
}
