//! A guest at an interface of the host: to the host, and beyond it by the host's routing.

use crate::common::bridge::{Bed, alone};
use crate::common::net::{Elsewhere, in_new_network, ip};
use crate::host::configure;
use crate::vm::{Vm, require_guests};
use ringbridge::config::port;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const BLOB: usize = 5 << 20;
const LIMIT: Duration = Duration::from_mins(1);

/// Connect to the guest, fetch its blob, give it back.
fn fetch_and_return(fetch: u16, give: u16) {
    let connect = |port| {
        let stream = TcpStream::connect_timeout(&([10, 9, 0, 1], port).into(), LIMIT).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        stream
    };
    let mut blob = Vec::new();
    connect(fetch).read_to_end(&mut blob).unwrap();
    assert_eq!(blob.len(), BLOB);
    connect(give).write_all(&blob).unwrap();
}

/// The host's side of the port has 10.9.0.100; another network is behind the host.
fn reaches_the_host_and_beyond(port: &'static str, host: &'static str) {
    if !require_guests() {
        return;
    }
    in_new_network(move || {
        let _alone = alone();
        if port.starts_with("af_packet") {
            ip(&format!("link add near type veth peer name {host}"));
            ip("link set near up");
        }
        let bed = Bed::with(1, |config, _| config.ports.push(port::parse(port).unwrap()));
        ip(&format!("link set {host} address 02:00:00:00:00:64 up"));
        ip(&format!("addr add 10.9.0.100/24 dev {host}"));
        let beyond = Elsewhere::new("out", "in");
        ip("addr add 10.8.0.1/24 dev out");
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        beyond.inside(|| {
            for line in
                ["addr add 10.8.0.2/24 dev in", "link set in up", "route add default via 10.8.0.1"]
            {
                ip(line);
            }
        });
        let mut vm = Vm::boot(&bed.dir, "vm", &[bed.socket(0).to_str().unwrap()]);
        vm.sh(&configure("eth0"));
        vm.sh("ip route add default via 10.9.0.100");
        for address in ["10.9.0.100", "10.8.0.2"] {
            vm.sh(&format!("ping -q -c 3 -i 0.1 -W 10 -s 1400 {address}"));
        }
        vm.sh(&format!("head -c {BLOB} /dev/urandom >/tmp/blob"));
        for (i, fetch) in [5000, 6000].into_iter().enumerate() {
            let give = fetch + 1;
            vm.sh(&format!(
                "nc -l -p {fetch} </tmp/blob & nc -l -p {give} >/tmp/back & \
                 until [ $(netstat -ltn | grep -c ':{fetch} \\|:{give} ') = 2 ]; do :; done"
            ));
            if i == 0 {
                fetch_and_return(fetch, give);
            } else {
                beyond.inside(move || fetch_and_return(fetch, give));
            }
            vm.sh("wait; cmp /tmp/blob /tmp/back");
        }
        vm.assert_no_virtio_error();
    });
}

#[test]
fn by_a_tap() {
    reaches_the_host_and_beyond("tap:tap0", "tap0");
}

#[test]
fn by_a_veth() {
    reaches_the_host_and_beyond("af_packet:near", "host0");
}
