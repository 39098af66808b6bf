//! What the paper prints: Kim and Rixner, "TCP Offload through Connection Handoff", EuroSys 2006.
//! Its figures are bars without numbers; these are the numbers of its text and of table 2.

use serde::Serialize;

use super::bench::Load;

/// What the cards change with one load on one number of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Published {
    /// Change of the cycles in the host's stack for a packet by the cards, percent.
    pub change: Option<f64>,
    /// Throughput without and with cards, Mb/s.
    pub mbits: Option<[f64; 2]>,
}

const fn change(percent: f64) -> Published {
    Published {
        change: Some(percent),
        mbits: None,
    }
}

const fn throughput(percent: f64, mbits: [f64; 2]) -> Published {
    Published {
        change: Some(percent),
        mbits: Some(mbits),
    }
}

/// Figure 7, messages: connections and cards with room for 256 of them each; section 5.1. For two
/// cards the text says only that they save more than one.
pub const MESSAGES: [(u32, u32, Published); 5] = [
    (1, 1, change(-76.0)),
    (256, 1, change(-84.0)),
    (512, 1, change(-36.0)),
    (
        512,
        2,
        Published {
            change: None,
            mbits: None,
        },
    ),
    (1_024, 1, change(-16.0)),
];

/// SPECweb99 with all connections on a card: figure 7 on the prototype, 64 clients (section 5.1),
/// and figure 9 in simulation (section 5.2).
pub const WEB: [(u32, Load, Published); 3] = [
    (64, Load::Web, change(-54.0)),
    (1_024, Load::Web, throughput(-17.0, [192.0, 222.0])),
    (1_024, Load::StaticWeb, throughput(-31.0, [307.0, 391.0])),
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
