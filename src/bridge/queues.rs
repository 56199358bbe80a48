//! The queues of a port, made from its specification.
//!
//! Promises: what can fail has failed before a worker hears of it. Used by the bridge alone.

#![forbid(unsafe_code)]

use super::OpenPortError;
use crate::config::{PortKind, PortSpec};
use crate::forward::{MAX_PORTS, PortId};
use crate::port::generator::Generator;
use crate::port::{RxQueue, TxQueue, nic, pcap, vhost};
use crate::stats::PortCounters;
use crate::worker::Receiver;
use std::sync::Arc;

/// The halves of a port.
pub struct Queues {
    /// What is received from it.
    pub receivers: Vec<Receiver>,
    /// What is sent to it.
    pub output: TxQueue,
}

impl Queues {
    /// Of port `port`, which is counted in `counters` and sends to `output`.
    pub fn open(
        port: PortId,
        spec: &PortSpec,
        counters: &PortCounters,
        output: Option<PortId>,
    ) -> Result<Self, OpenPortError> {
        let receiver = |pair: usize, queue, paced_by| {
            Receiver::new((port, pair), queue, &counters.rx[pair], paced_by)
        };
        Ok(match &spec.kind {
            PortKind::Vhost(_) => {
                let queue = |counters| RxQueue::Vhost(vhost::RxQueue::new(Arc::clone(counters)));
                let queues = counters.rx.iter().map(queue).enumerate();
                let receivers = queues.map(|(pair, queue)| receiver(pair, queue, None)).collect();
                Queues { receivers, output: TxQueue::Vhost(vhost::TxQueue::new(&counters.tx)) }
            }
            PortKind::Pcap(pcap) => {
                let reader = pcap::Reader::open(&pcap.input, pcap.repeat, pcap.rate)?;
                let writer = pcap::Writer::create(pcap.output.as_deref())?;
                for (reason, n) in reader.refused() {
                    counters.rx[0].lost(reason, n);
                }
                let queue = RxQueue::Pcap(reader, Arc::clone(&counters.rx[0]));
                Queues {
                    receivers: vec![receiver(0, queue, output)],
                    output: TxQueue::Pcap(writer, Arc::clone(&counters.tx[0])),
                }
            }
            // What they receive from and send to comes later, as a vhost port's rings do.
            PortKind::Tap(_) | PortKind::AfPacket(_) => {
                let queue = |counters| RxQueue::Nic(nic::RxQueue::new(Arc::clone(counters)));
                let queues = counters.rx.iter().map(queue).enumerate();
                let receivers = queues.map(|(pair, queue)| receiver(pair, queue, output)).collect();
                let counters = Arc::clone(&counters.tx[0]);
                Queues { receivers, output: TxQueue::Nic(nic::TxQueue::new(counters)) }
            }
            PortKind::Null => {
                Queues { receivers: Vec::new(), output: TxQueue::Null(Arc::clone(&counters.tx[0])) }
            }
        })
    }
}

/// The generator that feeds `port` with frames of `size` bytes. Its packets are counted where
/// they arrive, not where they are made.
pub fn generator(port: PortId, size: usize) -> Receiver {
    let queue = RxQueue::Generator(Generator::new(size));
    Receiver::new((MAX_PORTS + port, 0), queue, &Arc::default(), Some(port))
}
