//! DPDK's driver in the guest: what one side has sent, the other has received, to the packet.

use crate::common::backend::Backend;
use crate::common::bridge::alone;
use crate::common::wait_until;
use crate::scene::{assert_ordinary, socket};
use crate::vm::{LIMIT, Vm, require_guests};
use serde_json::json;

/// Packets that make a test.
const ENOUGH: u64 = 100_000;

/// `RX-packets` or the like of a port, from the last block of `show port stats`.
fn count(vm: &mut Vm, port: usize, what: &str) -> u64 {
    vm.begin(&format!("show port stats {port}"));
    let said = vm.wait_for(&format!("NIC statistics for port {port} "));
    let said = said + &vm.wait_for("Throughput");
    let (_, rest) = said.rsplit_once(&format!("{what}-packets: ")).unwrap();
    rest.split_whitespace().next().unwrap().parse().unwrap()
}

/// Wait until `want` is true of a count.
fn expect_count(vm: &mut Vm, port: usize, what: &str, want: impl Fn(u64) -> bool) {
    let mut now = 0;
    let came = wait_until(LIMIT, || {
        now = count(vm, port, what);
        want(now)
    });
    assert!(came, "{what}-packets of port {port}: {now}");
}

/// Port 0 receives from a generator; then port 1 sends to a sink.
fn counts_are_equal(mrg_rxbuf: &str) {
    if !require_guests() {
        return;
    }
    let _alone = alone();
    let mut generator = Backend::start(1, "", &["--json", "--forward", "txonly", "--size", "256"]);
    let mut sink = Backend::start(1, "", &["--json", "--forward", "rxonly"]);
    let (first, second) = (socket(&generator, 0), socket(&sink, 0));
    let args = ["--testpmd", "--cpus", "2", "--mrg-rxbuf", mrg_rxbuf, &first, &second];
    let mut vm = Vm::boot(&generator.dir, "vm", &args);
    vm.begin("testpmd -i --nb-cores=1");
    vm.wait_for("Done");

    vm.begin("set portlist 0\nset fwd rxonly\nstart");
    expect_count(&mut vm, 0, "RX", |count| count > ENOUGH);
    let totals = generator.finish();
    let sent = totals["ports"][0]["tx_packets"].as_u64().unwrap();
    expect_count(&mut vm, 0, "RX", |received| received == sent);

    vm.begin("stop\nset portlist 1\nset fwd txonly\nset txpkts 256\nstart");
    expect_count(&mut vm, 1, "TX", |count| count > ENOUGH);
    vm.begin("stop");
    // It says so when its last burst is out.
    vm.wait_for("Done");
    let sent = count(&mut vm, 1, "TX");
    sink.wait_idle();
    let totals = sink.finish();
    let received = &totals["ports"][0];
    assert_eq!(
        (&received["rx_packets"], &received["rx_bytes"]),
        (&json!(sent), &json!(sent * 256))
    );
    assert_ordinary(&generator.log());
    assert_ordinary(&sink.log());
}

#[test]
fn testpmd_counts_what_we_count_with_mergeable_buffers() {
    counts_are_equal("on");
}

#[test]
fn testpmd_counts_what_we_count_without_mergeable_buffers() {
    counts_are_equal("off");
}
