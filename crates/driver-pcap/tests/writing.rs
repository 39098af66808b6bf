//! What is written is read back, also through the queues.

use std::io::Cursor;

use fairlead_base::{Checksum, Gso, Instant, Packet};
use fairlead_driver_pcap::{
    CaptureQueue, CaptureReader, CaptureSink, CaptureWriter, Format, LinkType, Passage,
};
use fairlead_netio::{Batch, Direction, RxQueue, Sink, TxQueue};

/// A minimal IPv4 packet of `len` bytes.
fn ip(len: usize, first: u8) -> Vec<u8> {
    let mut bytes = vec![first; len];
    bytes[0] = 0x45;
    bytes[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    bytes
}

#[test]
fn packets_come_back_with_interface_stamp_and_lengths() {
    let mut writer =
        CaptureWriter::new(Vec::new(), "test", &["client side", "server side"]).unwrap();
    let stamp = 1_700_000_000_123_456_789;
    writer
        .write(0, Passage::In, stamp, &ip(41, 1), 0, "")
        .unwrap();
    writer
        .write(
            1,
            Passage::Out,
            stamp + 1,
            &ip(40, 2),
            1_400,
            "snapped \u{2026}",
        )
        .unwrap();
    let long = "\u{2713}".repeat(2_000);
    writer
        .write(1, Passage::Out, stamp + 2, &ip(43, 3), 0, &long)
        .unwrap();
    assert!(
        writer
            .write(2, Passage::In, stamp, &ip(40, 4), 0, "")
            .is_err()
    );
    assert_eq!(writer.packets(), 3);
    let file = writer.into_inner().unwrap();
    assert!(file.len() < 2_048, "comments are bounded");
    let text = String::from_utf8_lossy(&file);
    for name in ["client side", "server side", "snapped \u{2026}"] {
        assert!(text.contains(name), "{name}");
    }

    let mut reader = CaptureReader::from_source("t", Cursor::new(file)).unwrap();
    assert_eq!(reader.format(), Format::PcapNg);
    for (at, (len, missing)) in [(41usize, 0u32), (40, 1_400), (43, 0)]
        .into_iter()
        .enumerate()
    {
        let packet = reader.next_packet().unwrap().unwrap();
        assert_eq!(packet.bytes, ip(len, at as u8 + 1));
        assert_eq!(packet.link, LinkType::RAW);
        assert_eq!(packet.stamp_ns, Some(stamp + at as u64));
        assert_eq!(packet.original_len, len as u32 + missing);
    }
    assert!(reader.next_packet().unwrap().is_none());
}

#[test]
fn queues_pass_ip_packets_in_batches_of_one_stamp() {
    let writer = CaptureWriter::new(Vec::new(), "test", &["a", "b"]).unwrap();
    let mut sink = CaptureSink::new(writer, 1, 5_000_000_000);
    for (at_ms, len) in [(0, 40), (0, 41), (3, 42), (3, 43), (3, 44), (9, 45)] {
        let packet = Packet::from_bytes(&ip(len, 7));
        sink.transmit(Instant::from_millis(at_ms), &packet).unwrap();
    }
    let mut partial = Packet::from_bytes(&ip(46, 7));
    partial.checksum = Checksum::Partial;
    partial.gso = Some(Gso { segment_bytes: 10 });
    sink.record(Instant::from_millis(9), Direction::Rx, &partial);
    sink.flush(Instant::from_millis(9)).unwrap();
    assert_eq!(sink.lost(), 0);
    let mut writer = sink.into_writer();
    // Neither is received: one is not IP, one not whole.
    writer
        .write(0, Passage::In, 5_010_000_000, &[0x10, 0, 0, 0], 0, "")
        .unwrap();
    writer
        .write(0, Passage::In, 5_010_000_000, &ip(40, 7)[..30], 10, "")
        .unwrap();
    let file = writer.into_inner().unwrap();
    assert!(String::from_utf8_lossy(&file).contains("to be cut into segments"));

    let reader = CaptureReader::from_source("t", Cursor::new(file)).unwrap();
    let mut queue = CaptureQueue::new(reader);
    let mut batch = Batch::new(2, usize::MAX);
    let mut seen = Vec::new();
    while !queue.is_over() {
        batch.clear();
        let received = queue.receive(Instant::ZERO, &mut batch).unwrap();
        assert_eq!(received, batch.len());
        let lengths: Vec<usize> = batch
            .packets()
            .iter()
            .map(|packet| packet.bytes.len())
            .collect();
        if let Some(at) = batch.arrived() {
            seen.push((at.as_millis(), lengths));
        }
    }
    assert_eq!(
        seen,
        [
            (0, vec![40, 41]),
            (3, vec![42, 43]),
            (3, vec![44]),
            (9, vec![45, 46])
        ]
    );
    assert_eq!((queue.counts().passed, queue.counts().snapped), (7, 1));
    assert_eq!(queue.counts().not_ip.values().sum::<u64>(), 1);
}
