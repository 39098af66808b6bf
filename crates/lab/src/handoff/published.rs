//! What the paper prints: Kim and Rixner, "TCP Offload through Connection Handoff", EuroSys 2006.
//! Its figures are bars without numbers; these are the numbers of its text and of table 2.

/// A group of figure 7: messages of one segment over this number of connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// Connections.
    pub connections: u32,
    /// Cards with room for 256 connections each.
    pub cards: u32,
    /// Change of the cycles in the host's stack by the cards, percent; section 5.1.
    pub change: Option<f64>,
}

const fn group(connections: u32, cards: u32, change: Option<f64>) -> Group {
    Group {
        connections,
        cards,
        change,
    }
}

/// Figure 7. For two cards the text says only that they save more than one.
pub const FIGURE_7: [Group; 5] = [
    group(1, 1, Some(-76.0)),
    group(256, 1, Some(-84.0)),
    group(512, 1, Some(-36.0)),
    group(512, 2, None),
    group(1_024, 1, Some(-16.0)),
];

/// Figure 8 without handoff, in the words of section 5.1: two descriptors of 16 bytes for each
/// packet that is sent and one of 32 bytes for each that is received, and as many of these as of
/// those.
pub const DESCRIPTORS_PER_PACKET: f64 = 1.5;
/// Their bytes: 2 × 16 and 32 for two packets.
pub const DESCRIPTOR_BYTES_PER_PACKET: f64 = 32.0;

/// Table 2: instructions of the card for a packet, by layer.
pub const TABLE_2: [(&str, f64); 4] = [
    ("handoff", 413.0),
    ("TCP", 1_402.0),
    ("IP and Ethernet", 169.0),
    ("other", 1_130.0),
];
