//! Builds capture files by hand, in every variant of the formats.

#![allow(dead_code, reason = "each test program uses its part")]

/// How a file is laid out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variant {
    pub(crate) big_endian: bool,
    pub(crate) nanoseconds: bool,
}

impl Variant {
    pub(crate) const ALL: [Self; 4] = [
        Self::new(false, false),
        Self::new(false, true),
        Self::new(true, false),
        Self::new(true, true),
    ];

    const fn new(big_endian: bool, nanoseconds: bool) -> Self {
        Self {
            big_endian,
            nanoseconds,
        }
    }

    pub(crate) fn u16(self, value: u16) -> [u8; 2] {
        if self.big_endian {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        }
    }

    pub(crate) fn u32(self, value: u32) -> [u8; 4] {
        if self.big_endian {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        }
    }

    pub(crate) fn i64(self, value: i64) -> [u8; 8] {
        if self.big_endian {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        }
    }

    /// The units of stamps in a nanosecond count.
    pub(crate) fn ns_per_unit(self) -> u64 {
        if self.nanoseconds { 1 } else { 1_000 }
    }
}

/// A packet to be put into a file.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    pub(crate) stamp_ns: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) original_len: u32,
}

/// A few packets of different lengths, one of them snapped, one empty.
pub(crate) fn packets() -> Vec<Given> {
    [0usize, 1, 60, 61, 1514, 3]
        .iter()
        .enumerate()
        .map(|(at, &len)| Given {
            stamp_ns: 1_700_000_000_000_000_000 + at as u64 * 1_001_000,
            bytes: (0..len).map(|byte| (byte * 7 + at) as u8).collect(),
            original_len: len as u32 + if at == 3 { 100 } else { 0 },
        })
        .collect()
}

/// A file in tcpdump's format.
pub(crate) fn pcap(variant: Variant, link: u32, packets: &[Given]) -> Vec<u8> {
    let mut file = Vec::new();
    let magic = if variant.nanoseconds {
        0xa1b2_3c4d
    } else {
        0xa1b2_c3d4
    };
    file.extend(variant.u32(magic));
    file.extend(variant.u16(2));
    file.extend(variant.u16(4));
    file.extend([0; 8]);
    file.extend(variant.u32(65_535));
    file.extend(variant.u32(link));
    for packet in packets {
        file.extend(variant.u32((packet.stamp_ns / 1_000_000_000) as u32));
        let fraction = packet.stamp_ns % 1_000_000_000 / variant.ns_per_unit();
        file.extend(variant.u32(fraction as u32));
        file.extend(variant.u32(packet.bytes.len() as u32));
        file.extend(variant.u32(packet.original_len));
        file.extend(&packet.bytes);
    }
    file
}

/// One block of pcapng around `body`.
pub(crate) fn block(variant: Variant, kind: u32, body: &[u8]) -> Vec<u8> {
    let length = (12 + body.len().next_multiple_of(4)) as u32;
    let mut block = Vec::new();
    block.extend(variant.u32(kind));
    block.extend(variant.u32(length));
    block.extend(body);
    block.resize(length as usize - 4, 0);
    block.extend(variant.u32(length));
    block
}

/// An option of pcapng.
pub(crate) fn option(variant: Variant, code: u16, value: &[u8]) -> Vec<u8> {
    let mut option = Vec::new();
    option.extend(variant.u16(code));
    option.extend(variant.u16(value.len() as u16));
    option.extend(value);
    option.resize(option.len().next_multiple_of(4), 0);
    option
}

/// The header of a section.
pub(crate) fn section(variant: Variant) -> Vec<u8> {
    let body = [
        &variant.u32(0x1a2b_3c4d)[..],
        &variant.u16(1),
        &variant.u16(0),
        &variant.i64(-1),
        &option(variant, 4, b"by hand"),
        &option(variant, 0, &[]),
    ];
    block(variant, 0x0a0d_0d0a, &body.concat())
}

/// An interface with these options.
pub(crate) fn interface(variant: Variant, link: u16, snap_len: u32, options: &[u8]) -> Vec<u8> {
    let body = [
        &variant.u16(link)[..],
        &variant.u16(0),
        &variant.u32(snap_len),
        options,
    ];
    block(variant, 1, &body.concat())
}

/// An enhanced packet block; `units` is the stamp in the interface's resolution.
pub(crate) fn enhanced(variant: Variant, interface: u32, units: u64, packet: &Given) -> Vec<u8> {
    let mut body = [
        variant.u32(interface),
        variant.u32((units >> 32) as u32),
        variant.u32(units as u32),
        variant.u32(packet.bytes.len() as u32),
        variant.u32(packet.original_len),
    ]
    .concat();
    body.extend(&packet.bytes);
    body.resize(body.len().next_multiple_of(4), 0);
    body.extend(option(variant, 1, "a comment \u{2713}".as_bytes()));
    // Not UTF-8: some tools write such comments.
    body.extend(option(variant, 1, &[0xff, 0xfe, 0x00]));
    body.extend(option(variant, 0, &[]));
    block(variant, 6, &body)
}

/// A pcapng file with all packets on one Ethernet interface.
pub(crate) fn pcapng(variant: Variant, packets: &[Given]) -> Vec<u8> {
    let resolution = if variant.nanoseconds { 9 } else { 6 };
    let options = option(variant, 9, &[resolution]);
    let mut file = section(variant);
    file.extend(interface(variant, 1, 0, &options));
    for packet in packets {
        let units = packet.stamp_ns / variant.ns_per_unit();
        file.extend(enhanced(variant, 0, units, packet));
    }
    file
}
