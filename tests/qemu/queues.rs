//! Two queue pairs, both used, and one switched off and on by the guest.

use crate::common::backend::Backend;
use crate::common::bridge::alone;
use crate::host::{Host, configure};
use crate::memory::plug;
use crate::scene::assert_ordinary;
use crate::vm::{Vm, require_guests};

/// Packets that the guest's driver has seen in a queue; a queue that is off is not listed.
fn seen(vm: &mut Vm, queue: &str) -> u64 {
    let lines = vm.sh("ethtool -S eth0");
    let name = format!("{queue}_packets: ");
    let line = lines.lines().find_map(|line| line.trim().strip_prefix(&name));
    line.map_or(0, |count| count.parse().unwrap())
}

/// How many packets of 64 flows come by each of the guest's receive queues.
fn spread(vm: &mut Vm, host: &mut Host) -> [u64; 2] {
    let now = |vm: &mut Vm| ["rx_queue_0", "rx_queue_1"].map(|queue| seen(vm, queue));
    let before = now(vm);
    (0..64).for_each(|flow| host.send_flow(flow));
    // It is answered after them, whatever queue it takes.
    host.ping(56);
    let after = now(vm);
    [after[0] - before[0], after[1] - before[1]]
}

#[test]
fn both_queue_pairs_are_used_and_one_can_be_switched_off() {
    if !require_guests() {
        return;
    }
    let _alone = alone();
    let backend = Backend::start(2, ",queues=2", &[]);
    let mut host = Host::connect(&backend.sockets()[1]);
    let socket = backend.sockets()[0].display().to_string();
    let args = ["--queues", "2", "--cpus", "2", &socket, "--", "-m", "slots=1,maxmem=2G"];
    let mut vm = Vm::boot(&backend.dir, "vm", &args);
    vm.sh(&configure("eth0"));
    for round in 0..3 {
        // Each pair has its own idea of what the backend knows of the memory.
        match round {
            1 => plug(&mut vm, 0, 128),
            2 => {
                vm.begin("reboot -f");
                vm.wait_up();
                vm.sh(&configure("eth0"));
            }
            _ => {}
        }
        vm.sh("ethtool -L eth0 combined 2");
        let [first, second] = spread(&mut vm, &mut host);
        assert!(first > 10 && second > 10 && first + second >= 65, "{first} and {second}");
        // A queue is the CPU's.
        for (cpu, queue) in [(0, "tx_queue_0"), (1, "tx_queue_1")] {
            let before = seen(&mut vm, queue);
            vm.sh(&format!("taskset -c {cpu} ping -c 5 -i 0.1 -W 1 10.9.0.100 || true"));
            host.expect_pings(5);
            assert!(seen(&mut vm, queue) >= before + 5, "{queue}");
        }
        vm.sh("ethtool -L eth0 combined 1");
        let [first, second] = spread(&mut vm, &mut host);
        assert!(first >= 65 && second == 0, "{first} and {second}");
    }
    vm.assert_no_virtio_error();
    assert_ordinary(&backend.log());
}
