#![forbid(unsafe_code)]
//! What a guest says at the end.

use super::latency::Latency;
use serde::Serialize;

/// What a guest does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Receives and counts.
    RxOnly,
    /// Sends as fast as it can.
    TxOnly,
    /// Sends what it receives: out of the other socket, or of the same one if it is alone.
    Io,
    /// Numbers and checksums packets, sends them out and expects all of them back in order.
    Verify,
}

/// The end of a run. Serialized with the names of `guest --json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// What was done.
    pub mode: Mode,
    /// Frame bytes; in `verify` the largest.
    pub size: usize,
    /// How long.
    pub seconds: f64,
    /// Packets received.
    pub rx_packets: u64,
    /// Packets sent: given back by the backend.
    pub tx_packets: u64,
    /// Bytes received, without virtio-net headers.
    #[serde(skip)]
    pub rx_bytes: u64,
    /// Bytes sent.
    #[serde(skip)]
    pub tx_bytes: u64,
    /// Packets received a second.
    pub rx_pps: f64,
    /// Packets sent a second.
    pub tx_pps: f64,
    /// Packets a second in the best 100 ms: sent ones in `txonly`, else received ones.
    pub best_pps: f64,
    /// `verify`: never came back, or not in order. `io`: could not be sent on.
    pub lost: u64,
    /// `verify`: came back changed.
    pub corrupt: u64,
    /// `verify`: came back again.
    pub duplicated: u64,
    /// `verify`: how long packets were on their way.
    #[serde(rename = "latency_us", skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// Packets a second in each 100 ms.
    #[serde(skip)]
    pub windows: Vec<f64>,
    /// The guest's own cycles a packet (a tenth of the packets took no more), of rounds that
    /// moved packets: how light it was.
    #[serde(skip)]
    pub cycles_per_packet: u64,
    /// Interrupts that were asked for and never came, though there was work: lost wake-ups.
    #[serde(skip)]
    pub lost_interrupts: u64,
}

impl Report {
    /// Packets a second in the median window; 0 without any.
    pub fn median_pps(&self) -> f64 {
        let mut sorted = self.windows.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_the_documented_names() {
        let report = Report {
            mode: Mode::RxOnly,
            size: 64,
            seconds: 1.0,
            rx_packets: 2,
            tx_packets: 3,
            rx_bytes: 4,
            tx_bytes: 5,
            rx_pps: 6.0,
            tx_pps: 7.0,
            best_pps: 8.0,
            lost: 9,
            corrupt: 10,
            duplicated: 11,
            latency: None,
            windows: vec![3.0, 1.0, 2.0],
            cycles_per_packet: 0,
            lost_interrupts: 0,
        };
        let json = serde_json::to_string(&report).unwrap();
        let expected = r#"{"mode":"rxonly","size":64,"seconds":1.0,"rx_packets":2,"tx_packets":3,"rx_pps":6.0,"tx_pps":7.0,"best_pps":8.0,"lost":9,"corrupt":10,"duplicated":11}"#;
        assert_eq!(json, expected);
        let latency = Some(Latency { p50: 1.5, p99: 2.0, p999: 3.25 });
        let json = serde_json::to_string(&Report { latency, ..report.clone() }).unwrap();
        let more = r#","latency_us":{"p50":1.5,"p99":2.0,"p99.9":3.25}}"#;
        assert_eq!(json, expected.strip_suffix('}').unwrap().to_owned() + more);
        assert!((report.median_pps() - 2.0).abs() < 1e-9);
    }
}
