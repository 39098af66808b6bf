//! Both file formats in every variant, whole, cut and damaged.

mod support;

use std::io::{self, Cursor, Write};

use fairlead_driver_pcap::{CaptureReader, Fault, Format, LinkType};
use proptest::prelude::*;
use support::{Given, Variant, block, enhanced, interface, option, packets, pcap, pcapng, section};

#[derive(Debug, PartialEq)]
struct Read {
    number: u64,
    stamp_ns: Option<u64>,
    link: LinkType,
    bytes: Vec<u8>,
    original_len: u32,
}

/// A pipe whose writer is slow: a byte at a time, and a signal before each.
struct Drip {
    bytes: Cursor<Vec<u8>>,
    is_interrupted: bool,
}

impl io::Read for Drip {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.is_interrupted = !self.is_interrupted;
        if self.is_interrupted {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let count = out.len().min(1);
        self.bytes.read(&mut out[..count])
    }
}

fn read_by_drips(file: &[u8]) -> (Vec<Read>, Option<String>) {
    read_from(Drip {
        bytes: Cursor::new(file.to_vec()),
        is_interrupted: false,
    })
}

/// Everything up to the end, or to the first error.
fn read(file: &[u8]) -> (Vec<Read>, Option<String>) {
    read_from(Cursor::new(file.to_vec()))
}

fn read_from(source: impl io::Read + Send + 'static) -> (Vec<Read>, Option<String>) {
    let mut all = Vec::new();
    let mut reader = match CaptureReader::from_source("t", source) {
        Ok(reader) => reader,
        Err(error) => return (all, Some(error.to_string())),
    };
    loop {
        match reader.next_packet() {
            Ok(Some(packet)) => all.push(Read {
                number: packet.number,
                stamp_ns: packet.stamp_ns,
                link: packet.link,
                bytes: packet.bytes.to_vec(),
                original_len: packet.original_len,
            }),
            Ok(None) => return (all, None),
            Err(error) => {
                let text = error.to_string();
                assert!(reader.is_over());
                assert!(reader.next_packet().unwrap().is_none());
                return (all, Some(text));
            }
        }
    }
}

fn expected(given: &[Given]) -> Vec<Read> {
    given
        .iter()
        .zip(1..)
        .map(|(given, number)| Read {
            number,
            stamp_ns: Some(given.stamp_ns),
            link: LinkType::ETHERNET,
            bytes: given.bytes.clone(),
            original_len: given.original_len,
        })
        .collect()
}

#[test]
fn every_variant_gives_the_same_packets() {
    let given = packets();
    for variant in Variant::ALL {
        assert_eq!(read(&pcap(variant, 1, &given)), (expected(&given), None));
        assert_eq!(read(&pcapng(variant, &given)), (expected(&given), None));
    }
}

#[test]
fn files_that_come_byte_by_byte_are_known_by_their_first_bytes_too() {
    let given = packets();
    let plain = pcapng(Variant::ALL[1], &given);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(&plain).unwrap();
    let gzip = gzip.finish().unwrap();
    let zstd = zstd::encode_all(&plain[..], 1).unwrap();
    let old = pcap(Variant::ALL[0], 1, &given);
    for file in [&plain, &gzip, &zstd, &old] {
        assert_eq!(read_by_drips(file), (expected(&given), None));
    }
    for short in [&b""[..], b"\x1f", b"\x1f\x8b", b"\x28\xb5\x2f", b"\xa1\xb2"] {
        let (packets, error) = read(short);
        assert!(packets.is_empty() && error.is_some(), "{short:x?}");
        assert_eq!(read_by_drips(short), (packets, error));
    }
}

#[test]
fn packed_files_are_unpacked_whatever_they_are_called() {
    let given = packets();
    let plain = pcapng(Variant::ALL[1], &given);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(&plain[..200]).unwrap();
    let mut packed = gzip.finish().unwrap();
    // Members one after the other are one file (RFC 1952, section 2.2).
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(&plain[200..]).unwrap();
    packed.extend(gzip.finish().unwrap());
    assert_eq!(read(&packed), (expected(&given), None));
    let packed = zstd::encode_all(&plain[..], 3).unwrap();
    assert_eq!(read(&packed), (expected(&given), None));
    let (some, error) = read(&packed[..packed.len() - 20]);
    assert_eq!(some, expected(&given)[..some.len()]);
    assert!(
        error
            .unwrap()
            .ends_with("the file ends in the middle of it")
    );
}

/// Packets whose record ends at or before each length of the file.
fn whole_before(
    file: &[u8],
    given: &[Given],
    cut: usize,
    record: impl Fn(&Given) -> usize,
) -> usize {
    let all: usize = given.iter().map(&record).sum();
    let mut end = file.len() - all;
    let mut whole = 0;
    for given in given {
        end += record(given);
        whole += usize::from(end <= cut);
    }
    whole
}

#[test]
fn a_file_cut_anywhere_gives_what_came_before_and_says_where() {
    let given = packets();
    let variant = Variant::ALL[2];
    let legacy = pcap(variant, 1, &given);
    let blocks = pcapng(variant, &given);
    let legacy_record = |given: &Given| 16 + given.bytes.len();
    let block_record = |given: &Given| enhanced(variant, 0, 0, given).len();
    for cut in 24..legacy.len() {
        let (some, error) = read(&legacy[..cut]);
        let whole = whole_before(&legacy, &given, cut, legacy_record);
        assert_eq!(some, expected(&given)[..whole], "cut at {cut}");
        let ends =
            (0..=whole).any(|n| 24 + given[..n].iter().map(legacy_record).sum::<usize>() == cut);
        match error {
            None => assert!(ends, "cut at {cut}"),
            Some(text) => {
                let place = format!("t: packet {}, byte ", whole + 1);
                assert!(text.starts_with(&place), "{text}");
                assert!(
                    !ends && text.ends_with("the file ends in the middle of it"),
                    "{text}"
                );
            }
        }
    }
    for cut in 1..blocks.len() {
        let (some, error) = read(&blocks[..cut]);
        let whole = whole_before(&blocks, &given, cut, block_record);
        assert_eq!(some, expected(&given)[..whole], "cut at {cut}");
        if let Some(text) = error {
            let cut_short = text.ends_with("the file ends in the middle of it");
            assert!(cut_short || cut < 4, "{text}");
        }
    }
}

#[test]
fn what_is_no_capture_is_called_so() {
    let told = |bytes: &[u8]| read(bytes).1.unwrap();
    assert_eq!(
        told(b"\x89PNG\r\n"),
        "t: neither pcap nor pcapng: it starts with 89 50 4e 47"
    );
    assert_eq!(
        told(b""),
        "t: neither pcap nor pcapng: it starts with nothing: it is empty"
    );
    let missing = CaptureReader::open("/nonexistent/x.pcap".as_ref()).unwrap_err();
    assert!(matches!(missing.fault, Fault::Open(_)));
    assert!(
        missing
            .to_string()
            .starts_with("/nonexistent/x.pcap: cannot be opened: ")
    );
    let folder = CaptureReader::open("/".as_ref()).unwrap_err();
    assert!(
        folder.to_string().starts_with("/: cannot be opened: "),
        "{folder}"
    );
}

#[test]
fn impossible_lengths_are_damage_and_do_not_take_memory() {
    let given = packets();
    let variant = Variant::ALL[0];
    let mut file = pcap(variant, 1, &given[..2]);
    let next = file.len();
    file.extend([0; 8]);
    file.extend(0x7fff_ffff_u32.to_le_bytes());
    file.extend([0; 4]);
    let (some, error) = read(&file);
    assert_eq!(some, expected(&given[..2]));
    assert_eq!(
        error.unwrap(),
        format!(
            "t: packet 3, byte {next}: the file is damaged here: a record of 2147483647 bytes, \
             more than the 1048576 that are possible"
        )
    );
    for (length, text) in [
        (8, "a block of 8 bytes"),
        (34, "a block of 34 bytes"),
        (0x4000_0000, "a block of 1073741824 bytes, more than"),
    ] {
        let mut file = pcapng(variant, &given[..1]);
        file.extend(6u32.to_le_bytes());
        file.extend((length as u32).to_le_bytes());
        file.extend([0; 64]);
        let (some, error) = read(&file);
        assert_eq!(some.len(), 1);
        assert!(error.unwrap().contains(text));
    }
}

#[test]
fn blocks_of_other_kinds_are_passed_over_however_long() {
    let given = packets();
    for variant in Variant::ALL {
        let mut file = pcapng(variant, &given[..1]);
        file.extend(block(variant, 5, &[0; 12]));
        file.extend(block(variant, 0x0bad_0000, &vec![1; 3 << 20]));
        file.extend(block(variant, 10, b"secrets"));
        let units = given[1].stamp_ns / variant.ns_per_unit();
        file.extend(enhanced(variant, 0, units, &given[1]));
        assert_eq!(read(&file), (expected(&given[..2]), None));
    }
}

#[test]
fn sections_may_differ_in_byte_order_and_interfaces() {
    let given = packets();
    let (little, big) = (Variant::ALL[0], Variant::ALL[3]);
    let mut file = pcapng(little, &given[..1]);
    file.extend(section(big));
    file.extend(interface(big, 101, 0, &option(big, 9, &[9])));
    file.extend(interface(big, 276, 0, &option(big, 9, &[9])));
    file.extend(enhanced(big, 1, given[1].stamp_ns, &given[1]));
    file.extend(enhanced(big, 0, given[2].stamp_ns, &given[2]));
    let (all, error) = read(&file);
    assert_eq!(error, None);
    let links: Vec<u16> = all.iter().map(|packet| packet.link.0).collect();
    assert_eq!(links, [1, 276, 101]);
    assert_eq!(all[2].stamp_ns, Some(given[2].stamp_ns));
    file.extend(enhanced(big, 2, 0, &given[2]));
    assert!(read(&file).1.unwrap().contains("there is no interface 2"));
}

#[test]
fn stamps_are_read_in_any_resolution_with_offsets() {
    let variant = Variant::ALL[2];
    let given = &packets()[1];
    let resolutions: [(&[u8], u64, u64); 5] = [
        (&[3], 1_700_000_000_123, 1_700_000_000_123_000_000),
        (&[0], 1_700_000_000, 1_700_000_000_000_000_000),
        (&[12], 1_700_000_000_123_456_789, 1_700_000_000_123_456),
        (
            &[0x80 | 10],
            1_024 * 1_700_000_000 + 512,
            1_700_000_000_500_000_000,
        ),
        (&[0x80 | 63], 3 << 62, 1_500_000_000),
    ];
    for (resolution, units, stamp_ns) in resolutions {
        let mut file = section(variant);
        file.extend(interface(variant, 1, 0, &option(variant, 9, resolution)));
        file.extend(enhanced(variant, 0, units, given));
        let mut late = option(variant, 9, resolution);
        late.extend(option(variant, 14, &variant.i64(-100)));
        file.extend(interface(variant, 1, 0, &late));
        file.extend(enhanced(variant, 1, units, given));
        let (all, error) = read(&file);
        assert_eq!(error, None);
        assert_eq!(all[0].stamp_ns, Some(stamp_ns));
        let earlier = stamp_ns.saturating_sub(100_000_000_000);
        assert_eq!(all[1].stamp_ns, Some(earlier));
    }
    let mut file = section(variant);
    file.extend(interface(variant, 1, 0, &option(variant, 9, &[20])));
    assert!(
        read(&file)
            .1
            .unwrap()
            .contains("stamps in units of 10^-20 s")
    );
}

#[test]
fn simple_and_obsolete_packet_blocks_are_read() {
    for variant in Variant::ALL {
        let mut file = section(variant);
        file.extend(interface(variant, 1, 4, &[]));
        let stamp_us: u64 = 1_600_000_000_000_001;
        let body = [
            &variant.u16(0)[..],
            &variant.u16(9),
            &variant.u32((stamp_us >> 32) as u32),
            &variant.u32(stamp_us as u32),
            &variant.u32(3),
            &variant.u32(1_500),
            b"abc",
        ];
        file.extend(block(variant, 2, &body.concat()));
        // No stamp, and a length limited by the interface's.
        let body = [&variant.u32(6)[..], b"abcd"];
        file.extend(block(variant, 3, &body.concat()));
        let (all, error) = read(&file);
        assert_eq!((all.len(), error), (2, None));
        assert_eq!(
            (&all[0].bytes[..], all[0].original_len),
            (&b"abc"[..], 1_500)
        );
        assert_eq!(all[0].stamp_ns, Some(stamp_us * 1_000));
        assert_eq!((&all[1].bytes[..], all[1].original_len), (&b"abcd"[..], 6));
        assert_eq!(all[1].stamp_ns, all[0].stamp_ns);
        // Before all others it has none.
        let mut file = section(variant);
        file.extend(interface(variant, 1, 4, &[]));
        file.extend(block(variant, 3, &body.concat()));
        assert_eq!(read(&file).0[0].stamp_ns, None);
    }
}

#[test]
fn the_formats_are_told_apart() {
    let format = |file: Vec<u8>| {
        let reader = CaptureReader::from_source("t", Cursor::new(file)).unwrap();
        reader.format()
    };
    assert_eq!(format(pcap(Variant::ALL[0], 1, &[])), Format::Pcap);
    assert_eq!(format(pcapng(Variant::ALL[0], &[])), Format::PcapNg);
    // Upper bits of the link type: flags and the length of a frame check sequence.
    let flagged = pcap(Variant::ALL[3], 0x5400_0001, &packets());
    assert_eq!(read(&flagged).0[0].link, LinkType::ETHERNET);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn damage_never_panics_and_never_invents_packets_before_it(
        which in 0usize..8,
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let given = packets();
        let variant = Variant::ALL[which % 4];
        let mut file = match which / 4 {
            0 => pcap(variant, 1, &given),
            _ => pcapng(variant, &given),
        };
        let mut first = file.len();
        for (at, value) in damage {
            let at = at.index(file.len());
            first = first.min(at);
            file[at] ^= value;
        }
        let (some, _) = read(&file);
        let (before, _) = read(&file[..first]);
        prop_assert!(some.len() >= before.len());
        prop_assert_eq!(&some[..before.len()], &before[..]);
        prop_assert!(some.iter().map(|packet| packet.bytes.len()).sum::<usize>() <= file.len());
    }

    #[test]
    fn noise_behind_a_header_never_panics(
        noise in proptest::collection::vec(any::<u8>(), 0..512),
        which in 0usize..8,
    ) {
        let variant = Variant::ALL[which % 4];
        let mut file = match which / 4 {
            0 => pcap(variant, 1, &[]),
            _ => pcapng(variant, &[]),
        };
        file.extend(noise);
        let (some, _) = read(&file);
        prop_assert!(some.iter().map(|packet| packet.bytes.len()).sum::<usize>() <= file.len());
    }
}
