//! What a device has carried, and how many bytes each system call moved.

/// Counters of one direction of a device, by the size of the packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SizeCounts {
    /// Packets, a super-packet being one.
    pub packets: u64,
    /// Their bytes, IP headers included, without the device's own header.
    pub bytes: u64,
    /// Super-packets among them.
    pub super_packets: u64,
    /// The longest packet, bytes.
    pub longest_bytes: u64,
    /// Packets by length: up to 128 bytes, then doubling with each entry; the last entry counts
    /// everything above 32 KiB.
    pub by_size: [u64; SIZE_CLASSES],
}

/// Entries of [`SizeCounts::by_size`].
pub const SIZE_CLASSES: usize = 10;
const FIRST_CLASS_BITS: u32 = 7;

impl SizeCounts {
    /// Counts one packet.
    #[inline]
    pub(crate) fn add(&mut self, packet_bytes: usize, is_super: bool) {
        self.packets += 1;
        self.bytes += packet_bytes as u64;
        self.super_packets += u64::from(is_super);
        self.longest_bytes = self.longest_bytes.max(packet_bytes as u64);
        self.by_size[Self::class_of(packet_bytes)] += 1;
    }

    fn class_of(packet_bytes: usize) -> usize {
        let bits = usize::BITS - packet_bytes.saturating_sub(1).leading_zeros();
        (bits.saturating_sub(FIRST_CLASS_BITS) as usize).min(SIZE_CLASSES - 1)
    }

    /// The longest packet that an entry of [`Self::by_size`] counts, bytes; `None` for the last.
    pub fn class_limit_bytes(class: usize) -> Option<u64> {
        (class < SIZE_CLASSES - 1).then(|| 1 << (FIRST_CLASS_BITS as usize + class))
    }

    /// Bytes that one system call moved, on average.
    pub fn bytes_per_call(&self) -> u64 {
        self.bytes.checked_div(self.packets).unwrap_or(0)
    }
}

/// Counters of a device since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// What was read.
    pub rx: SizeCounts,
    /// What was written.
    pub tx: SizeCounts,
    /// Reads of an empty queue.
    pub rx_empty_reads: u64,
    /// Packets thrown away because their header contradicted them.
    pub rx_bad_header: u64,
    /// Packets that the device refused for lack of memory or queue space.
    pub tx_no_room: u64,
    /// Packets that the device refused because it was down.
    pub tx_down: u64,
    /// Packets that the kernel refused as malformed.
    pub tx_refused: u64,
    /// Packets that no header can describe.
    pub tx_unsendable: u64,
}

impl DeviceCounters {
    /// Packets that were to be sent and were not, for any reason.
    pub fn tx_failed(&self) -> u64 {
        self.tx_no_room + self.tx_down + self.tx_refused + self.tx_unsendable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_fall_into_the_class_whose_limit_holds_them() {
        for bytes in [
            0,
            1,
            40,
            128,
            129,
            256,
            1_500,
            2_048,
            32_768,
            32_769,
            65_535,
            1 << 40,
        ] {
            let class = SizeCounts::class_of(bytes);
            if let Some(limit) = SizeCounts::class_limit_bytes(class) {
                assert!(bytes as u64 <= limit, "{bytes} in class {class}");
            }
            if class > 0 {
                let below = SizeCounts::class_limit_bytes(class - 1).unwrap();
                assert!(bytes as u64 > below, "{bytes} in class {class}");
            }
        }
        assert_eq!(
            SizeCounts::class_limit_bytes(SIZE_CLASSES - 2),
            Some(32_768)
        );
    }

    #[test]
    fn averages_and_extremes() {
        let mut counts = SizeCounts::default();
        assert_eq!(counts.bytes_per_call(), 0);
        counts.add(100, false);
        counts.add(60_000, true);
        assert_eq!((counts.packets, counts.super_packets), (2, 1));
        assert_eq!(
            (counts.bytes_per_call(), counts.longest_bytes),
            (30_050, 60_000)
        );
        assert_eq!(counts.by_size.iter().sum::<u64>(), 2);
    }

    #[test]
    fn every_kind_of_failure_is_a_failure() {
        let counters = DeviceCounters {
            tx_no_room: 1,
            tx_down: 2,
            tx_refused: 4,
            tx_unsendable: 8,
            ..Default::default()
        };
        assert_eq!(counters.tx_failed(), 15);
    }
}
