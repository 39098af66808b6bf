//! Captures with faults: packets lost, doubled, out of order, damaged, cut.

use std::sync::LazyLock;

use fairlead_base::Rng;
use fairlead_driver_pcap::CaptureReader;
use proptest::prelude::*;

use crate::support::{Manner, all_kept, play_bytes};

/// A packet as a capture has it: link type, stamp, bytes, length on the wire.
type Record = (u16, u64, Vec<u8>, u32);

/// The kept captures, read.
static CAPTURES: LazyLock<Vec<Vec<Record>>> = LazyLock::new(|| {
    all_kept()
        .iter()
        .map(|path| {
            let mut reader = CaptureReader::open(path).unwrap();
            let mut records = Vec::new();
            while let Some(packet) = reader.next_packet().unwrap() {
                let (link, stamp) = (packet.link.0, packet.stamp_ns.unwrap());
                records.push((link, stamp, packet.bytes.to_vec(), packet.original_len));
            }
            records
        })
        .collect()
});

/// A capture file of these records, which are of one link type.
fn file_of(records: &[Record]) -> Vec<u8> {
    let link = records.first().map_or(1, |record| record.0);
    let mut file = Vec::new();
    file.extend(0xa1b2_3c4d_u32.to_le_bytes());
    file.extend([2, 0, 4, 0]);
    file.extend([0; 8]);
    file.extend(262_144_u32.to_le_bytes());
    file.extend(u32::from(link).to_le_bytes());
    for (_, stamp_ns, bytes, original_len) in records {
        file.extend(((stamp_ns / 1_000_000_000) as u32).to_le_bytes());
        file.extend(((stamp_ns % 1_000_000_000) as u32).to_le_bytes());
        file.extend((bytes.len() as u32).to_le_bytes());
        file.extend(original_len.to_le_bytes());
        file.extend_from_slice(bytes);
    }
    file
}

/// Rates of each fault, in packets out of a million.
#[derive(Clone, Copy, Debug)]
struct Faults {
    lost: u32,
    doubled: u32,
    swapped: u32,
    damaged: u32,
    cut: u32,
}

fn with_faults(records: &[Record], faults: Faults, seed: u64) -> Vec<Record> {
    let mut rng = Rng::new(seed);
    let mut out: Vec<Record> = Vec::new();
    for record in records {
        let mut record = record.clone();
        if rng.chance(faults.lost) {
            continue;
        }
        if rng.chance(faults.damaged) && !record.2.is_empty() {
            let at = rng.below(record.2.len() as u32) as usize;
            record.2[at] ^= 1 << rng.below(8);
        }
        if rng.chance(faults.cut) {
            let keep = rng.below(record.2.len() as u32 + 1) as usize;
            record.2.truncate(keep);
        }
        if rng.chance(faults.doubled) {
            out.push(record.clone());
        }
        out.push(record);
        let last = out.len() - 1;
        if last > 0 && rng.chance(faults.swapped) {
            out.swap(last, last - 1);
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Loss, duplication and disorder are what TCP is made for: the translation of what is passed
    /// on stays exact.
    #[test]
    fn translation_is_exact_whatever_is_lost_or_out_of_order(
        which in any::<prop::sample::Index>(),
        manner in 0usize..Manner::ALL.len(),
        rates in (0u32..200_000, 0u32..200_000, 0u32..200_000),
        seed in any::<u64>(),
    ) {
        let (lost, doubled, swapped) = rates;
        let faults = Faults { lost, doubled, swapped, damaged: 0, cut: 0 };
        let records = with_faults(&CAPTURES[which.index(CAPTURES.len())], faults, seed);
        let played = play_bytes(&file_of(&records), Manner::ALL[manner]);
        prop_assert_eq!(&played.comparison.differences, &[]);
        prop_assert_eq!(played.tally.unsound, 0);
        prop_assert_eq!(played.tally.packets, records.len() as u64);
        let accounted = played.tally.played + played.tally.unplayed_total();
        prop_assert_eq!(accounted, records.len() as u64);
    }

    /// Damaged and cut packets: nothing panics, and every packet is accounted for.
    #[test]
    fn damage_is_survived_and_counted(
        which in any::<prop::sample::Index>(),
        manner in 0usize..Manner::ALL.len(),
        rates in (0u32..300_000, 0u32..300_000, 0u32..100_000),
        seed in any::<u64>(),
    ) {
        let (damaged, cut, doubled) = rates;
        let faults = Faults { lost: 0, doubled, swapped: 0, damaged, cut };
        let records = with_faults(&CAPTURES[which.index(CAPTURES.len())], faults, seed);
        let played = play_bytes(&file_of(&records), Manner::ALL[manner]);
        prop_assert_eq!(played.tally.packets, records.len() as u64);
        let accounted = played.tally.played + played.tally.unplayed_total();
        prop_assert_eq!(accounted, records.len() as u64);
        prop_assert_eq!(played.connections.len() as u64, played.summary.connections);
    }
}

/// Found by the property above: the server's FIN stands before the SYN-ACK, and what it sent is
/// lost, so that the FIN alone tells how much that was.
#[test]
fn a_stream_whose_end_comes_first_is_as_long_as_that_says() {
    let http = all_kept()
        .iter()
        .position(|path| path.ends_with("http-2011.pcap"))
        .expect("it is kept");
    let faults = Faults {
        lost: 128_942,
        doubled: 0,
        swapped: 115_499,
        damaged: 0,
        cut: 0,
    };
    let records = with_faults(&CAPTURES[http], faults, 3_504_138_142_760_675_730);
    let played = play_bytes(&file_of(&records), Manner::ALL[0]);
    assert_eq!(&played.comparison.differences, &[]);
    assert_eq!(played.tally.packets, records.len() as u64);
}
