//! Files written and read back, by us and by `tcpdump`.

use super::*;
use crate::packet::ALL;
use pcap_file::pcap::{PcapParser, PcapWriter, RawPcapPacket};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionBlock;
use pcap_file::pcapng::blocks::simple_packet::SimplePacketBlock;
use pcap_file::{DataLink, TsResolution};
use std::process::Command;

/// Frames that fit into a head, just do not, and are large.
fn frames() -> Vec<Vec<u8>> {
    [14, 60, 192, 193, 1518, 65535].map(|len| (0..len).map(|i| (i * 3) as u8).collect()).into()
}

fn write_file(path: &Path, header: PcapHeader, frames: &[Vec<u8>]) {
    let mut file = PcapWriter::with_header(File::create(path).unwrap(), header).unwrap();
    for frame in frames {
        let len = frame.len() as u32;
        let data = frame.into();
        let record = RawPcapPacket { ts_sec: 1, ts_frac: 2, incl_len: len, orig_len: len, data };
        file.write_raw_packet(&record).unwrap();
    }
}

fn read_burst(reader: &mut Reader, packets: &mut Packets, max: usize) -> Vec<Vec<u8>> {
    reader.receive(packets, max);
    let whole = |i| {
        let mut out = vec![0; packets.packet_len(i)];
        packets.copy_out(i, &mut out);
        out
    };
    (0..packets.len()).map(whole).collect()
}

#[test]
fn every_classic_variant_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("in.pcap");
    for endianness in [Endianness::Big, Endianness::Little] {
        for ts_resolution in [TsResolution::MicroSecond, TsResolution::NanoSecond] {
            let header = PcapHeader { endianness, ts_resolution, ..PcapHeader::default() };
            write_file(&path, header, &frames());
            let mut reader = Reader::open(&path, false, None).unwrap();
            let mut packets = Packets::new();
            assert_eq!(read_burst(&mut reader, &mut packets, 4), frames()[..4]);
            assert_eq!(read_burst(&mut reader, &mut packets, 64), frames()[4..]);
            assert!(read_burst(&mut reader, &mut packets, 64).is_empty(), "the end is the end");
        }
    }
}

#[test]
fn pcapng_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("in.pcapng");
    for endianness in [Endianness::Big, Endianness::Little] {
        let file = File::create(&path).unwrap();
        let mut file = PcapNgWriter::with_endianness(file, endianness).unwrap();
        for snaplen in [0, 1000] {
            let interface = InterfaceDescriptionBlock {
                linktype: DataLink::ETHERNET,
                snaplen,
                options: vec![],
            };
            file.write_pcapng_block(interface).unwrap();
        }
        for (i, frame) in frames().iter().enumerate() {
            let (original_len, data) = (frame.len() as u32, frame.into());
            if i.is_multiple_of(2) {
                let packet = SimplePacketBlock { original_len, data };
                file.write_pcapng_block(packet).unwrap();
            } else {
                let timestamp = Duration::from_secs(1);
                let packet = EnhancedPacketBlock {
                    interface_id: 1,
                    timestamp,
                    original_len,
                    data,
                    options: vec![],
                };
                file.write_pcapng_block(packet).unwrap();
            }
        }
        drop(file);
        let mut reader = Reader::open(&path, false, None).unwrap();
        assert_eq!(read_burst(&mut reader, &mut Packets::new(), 64), frames());
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 5]).unwrap();
        let mut reader = Reader::open(&path, false, None).unwrap();
        assert_eq!(read_burst(&mut reader, &mut Packets::new(), 64), frames()[..5]);
    }
}

#[test]
fn a_rate_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("in.pcap");
    write_file(&path, PcapHeader::default(), &frames()[..3]);
    let mut reader = Reader::open(&path, true, Some(10)).unwrap();
    let mut packets = Packets::new();
    assert_eq!(read_burst(&mut reader, &mut packets, 64).len(), 1);
    assert!(read_burst(&mut reader, &mut packets, 64).is_empty() && reader.is_waiting());
}

#[test]
fn a_repeated_file_has_no_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("in.pcap");
    write_file(&path, PcapHeader::default(), &frames()[..3]);
    let mut reader = Reader::open(&path, true, None).unwrap();
    let mut packets = Packets::new();
    let burst = read_burst(&mut reader, &mut packets, 7);
    assert_eq!(burst, [&frames()[..3], &frames()[..3], &frames()[..1]].concat());
    assert_eq!(read_burst(&mut reader, &mut packets, 1), frames()[1..2]);
    write_file(&path, PcapHeader::default(), &[]);
    let mut empty = Reader::open(&path, true, None).unwrap();
    assert!(read_burst(&mut empty, &mut packets, 64).is_empty());
}

#[test]
fn frames_that_cannot_be_sent_are_left_out_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("in.pcap");
    let mixed = [vec![], vec![1; 13], vec![2; 14], vec![3; 65536], vec![4; 60]];
    write_file(&path, PcapHeader::default(), &mixed);
    let mut reader = Reader::open(&path, false, None).unwrap();
    assert_eq!(reader.refused(), [(Reason::Runt, 2), (Reason::TooLong, 1)]);
    let expected = [vec![2; 14], vec![4; 60]];
    assert_eq!(read_burst(&mut reader, &mut Packets::new(), 64), expected);
}

#[test]
fn a_file_cut_short_is_used_up_to_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("in.pcap");
    write_file(&path, PcapHeader::default(), &frames()[..3]);
    for cut in [1, 192, 200, 208] {
        let whole = std::fs::read(&path).unwrap();
        let short = dir.path().join("short.pcap");
        std::fs::write(&short, &whole[..whole.len() - cut]).unwrap();
        let mut reader = Reader::open(&short, false, None).unwrap();
        assert_eq!(read_burst(&mut reader, &mut Packets::new(), 64), frames()[..2], "{cut}");
    }
}

#[test]
fn a_burst_ends_at_256_kib() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("in.pcap");
    write_file(&path, PcapHeader::default(), &[vec![0; 65535]]);
    let mut reader = Reader::open(&path, true, None).unwrap();
    assert_eq!(read_burst(&mut reader, &mut Packets::new(), 64).len(), 5);
}

#[test]
fn other_files_are_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("in.pcap");
    let name = path.display();
    let refusal = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        Reader::open(&path, false, None).unwrap_err().to_string()
    };
    assert_eq!(
        refusal(b"hello"),
        format!("{name} is not a pcap file; give a capture such as tcpdump -w makes")
    );
    let no_pcap = format!("{name} is not a pcap file; give a capture such as tcpdump -w makes");
    assert_eq!(refusal(&[0x0A, 0x0D, 0x0D, 0x0A, 0, 0]), no_pcap);
    let raw_ip = PcapHeader { datalink: DataLink::RAW, ..PcapHeader::default() };
    write_file(&path, raw_ip, &[]);
    let refused = Reader::open(&path, false, None).unwrap_err().to_string();
    assert_eq!(refused, format!("{name} has link type 101; only Ethernet (1) can be sent"));
    std::fs::remove_file(&path).unwrap();
    let missing = Reader::open(&path, false, None).unwrap_err().to_string();
    assert_eq!(missing, format!("cannot read {name}"));
    assert!(Writer::create(Some(dir.path())).is_err());
}

/// Our writer's file of `frames`, sent in two ranges.
fn written(dir: &Path) -> (PathBuf, QueueCounters) {
    let (input, output) = (dir.join("in.pcap"), dir.join("out.pcap"));
    write_file(&input, PcapHeader::default(), &frames());
    let mut packets = Packets::new();
    Reader::open(&input, false, None).unwrap().receive(&mut packets, 64);
    let counters = QueueCounters::default();
    let mut writer = Writer::create(Some(&output)).unwrap();
    writer.send(&packets, &ALL[0..2], &counters);
    writer.send(&packets, &ALL[2..6], &counters);
    writer.flush();
    (output, counters)
}

#[test]
fn what_is_sent_is_in_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let (path, counters) = written(dir.path());
    let mut reader = Reader::open(&path, false, None).unwrap();
    assert_eq!(read_burst(&mut reader, &mut Packets::new(), 64), frames());
    assert_eq!(counters.packets.get(), 6);
    let file = std::fs::read(&path).unwrap();
    let (mut rest, parser) = PcapParser::new(&file).unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    while !rest.is_empty() {
        let (after, packet) = parser.next_packet(rest).unwrap();
        assert_eq!(packet.orig_len as usize, packet.data.len());
        assert!(now.abs_diff(packet.timestamp) < Duration::from_hours(1));
        rest = after;
    }
    assert_eq!(counters.bytes.get(), frames().iter().map(|f| f.len() as u64).sum::<u64>());
}

#[test]
fn tcpdump_reads_what_we_write() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = written(dir.path());
    let Ok(output) = Command::new("tcpdump").args(["-nn", "-xx", "-r"]).arg(&path).output() else {
        assert!(
            std::env::var_os("RINGBRIDGE_REQUIRE").is_none_or(|all| all != "all"),
            "no tcpdump"
        );
        eprintln!("skipped: tcpdump is not installed");
        return;
    };
    assert!(output.status.success(), "{output:?}");
    // The hex lines of all frames, in order, are the frames.
    let text = String::from_utf8(output.stdout).unwrap();
    let hex: String = text
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("0x")?.split_once(':'))
        .flat_map(|(_, hex)| hex.chars().filter(|c| !c.is_whitespace()))
        .collect();
    let byte = |i: usize| u8::from_str_radix(hex.get(2 * i..2 * i + 2)?, 16).ok();
    let shown: Vec<u8> = (0..hex.len() / 2).map_while(byte).collect();
    assert!(shown == frames().concat(), "tcpdump shows other bytes");
}

#[test]
fn without_a_file_packets_are_counted_as_sent() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("in.pcap");
    write_file(&path, PcapHeader::default(), &frames()[..3]);
    let mut packets = Packets::new();
    Reader::open(&path, false, None).unwrap().receive(&mut packets, 64);
    let counters = QueueCounters::default();
    Writer::create(None).unwrap().send(&packets, &ALL[1..3], &counters);
    assert_eq!((counters.packets.get(), counters.bytes.get()), (2, 252));
}

#[test]
fn a_full_disk_is_counted_and_stays_failed() {
    let full = Path::new("/dev/full");
    if !full.exists() {
        assert!(
            std::env::var_os("RINGBRIDGE_REQUIRE").is_none_or(|all| all != "all"),
            "no /dev/full"
        );
        eprintln!("skipped: there is no /dev/full");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("in.pcap");
    write_file(&path, PcapHeader::default(), &frames());
    let mut packets = Packets::new();
    Reader::open(&path, false, None).unwrap().receive(&mut packets, 64);
    let counters = QueueCounters::default();
    let mut writer = Writer::create(Some(full)).unwrap();
    // The large one goes straight to the file; the small ones would fit into the buffer.
    writer.send(&packets, &ALL[5..6], &counters);
    writer.send(&packets, &ALL[0..2], &counters);
    assert_eq!(counters.dropped(Reason::OutputError), 3);
    assert_eq!(counters.packets.get(), 0);
}
