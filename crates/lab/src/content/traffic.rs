//! What a server's responses transfer over the bus of its network interface, with and without a
//! cache there, and the buses.

use fairlead_content::DESCRIPTOR_BYTES;
use fairlead_content::bus::{ByKind, Model, Traffic};
use serde::Serialize;

use super::responses::Responses;
use super::spec::CellResult;

/// Sizes that a log does not have. All are assumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Assumed {
    /// Payload of a full packet.
    pub segment_bytes: u64,
    /// Ethernet, IP and TCP headers of a packet.
    pub network_header_bytes: u64,
    /// Header of a response.
    pub response_header_bytes: u64,
    /// Packet with a request.
    pub request_bytes: u64,
    /// Packet with an acknowledgement, one for every two segments.
    pub acknowledgement_bytes: u64,
}

impl Default for Assumed {
    fn default() -> Self {
        Self {
            segment_bytes: 1_460,
            network_header_bytes: 54,
            response_header_bytes: 250,
            request_bytes: 350,
            acknowledgement_bytes: 60,
        }
    }
}

/// What the responses transfer; with a result: that of its caches.
pub fn traffic(responses: &Responses, cached: Option<&CellResult>, assumed: &Assumed) -> Traffic {
    let mut bytes = ByKind::default();
    let mut transfers = ByKind::default();
    let mut inserted = 0;
    let page = 4_096;
    for (file, size) in responses.file.iter().zip(&responses.bytes) {
        let payload = size + assumed.response_header_bytes;
        let packets = payload.div_ceil(assumed.segment_bytes);
        // A packet's content is in one piece, or in two at the boundary of a page.
        let pieces = packets + size / page;
        bytes.network_headers += packets * assumed.network_header_bytes;
        transfers.network_headers += packets;
        bytes.application_headers += assumed.response_header_bytes;
        transfers.application_headers += 1;
        let descriptors = packets + 1 + pieces;
        bytes.descriptors += descriptors * DESCRIPTOR_BYTES as u64;
        // The device fetches the descriptors of a packet at once.
        transfers.descriptors += packets;
        let acknowledgements = packets.div_ceil(2);
        bytes.other += assumed.request_bytes + acknowledgements * assumed.acknowledgement_bytes;
        transfers.other += 1 + acknowledgements;
        let admitted =
            cached.filter(|result| responses.file_bytes[*file as usize] <= result.cell.size.0);
        bytes.content += size;
        match admitted {
            Some(result) => inserted += result.cell.block.blocks(*size),
            None => transfers.content += pieces,
        }
    }
    if let Some(result) = cached {
        bytes.content -= result.count.bytes.min(bytes.content);
        // A block that is not cached is inserted by one transfer.
        inserted -= result.count.blocks.min(inserted);
        transfers.content += inserted;
        transfers.descriptors += inserted;
        bytes.descriptors += inserted * DESCRIPTOR_BYTES as u64;
    }
    Traffic { bytes, transfers }
}

/// A bus by name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bus {
    /// `pci33`, `pcie4-x8`.
    pub name: &'static str,
    /// Where its constants are from.
    pub source: &'static str,
    /// The bus; the stall of PCI buses is 0 and follows from a fit.
    pub model: Model,
    /// Its stall, as a multiple of the fitted one.
    pub stalls: f64,
}

const PCI: Model = Model {
    width: 8.0,
    clock_hz: 33.33e6,
    address_cycles: 4.0,
    stall_s: 0.0,
    burst_max: u64::MAX,
    burst_bytes: 0.0,
};

const PCIE: Model = Model {
    width: 8.0,
    clock_hz: 0.0,
    address_cycles: 0.0,
    stall_s: 0.0,
    burst_max: 256,
    burst_bytes: 24.0,
};

const PCIE_SOURCE: &str = "8 lanes at the specification's rate after line coding; 256 bytes of \
    payload and 24 bytes of header, sequence number and check per packet; waiting for memory \
    overlaps, so it stalls nothing";

/// The paper's buses, and today's.
pub const BUSES: [Bus; 6] = [
    Bus {
        name: "pci33",
        source: "64 bits, 33 MHz (table 2); 4 cycles of address and turn-around assumed; stall \
            fitted",
        model: PCI,
        stalls: 1.0,
    },
    Bus {
        name: "pci66-amd",
        source: "66 MHz; the stall is doubled, because the paper measured four times the overhead \
            per byte instead of twice",
        model: Model {
            clock_hz: 66.67e6,
            ..PCI
        },
        stalls: 2.0,
    },
    Bus {
        name: "pci66-intel",
        source: "66 MHz; the stall takes the same time as at 33 MHz",
        model: Model {
            clock_hz: 66.67e6,
            ..PCI
        },
        stalls: 1.0,
    },
    Bus {
        name: "pcie3-x8",
        source: PCIE_SOURCE,
        model: Model {
            clock_hz: 0.9846e9,
            ..PCIE
        },
        stalls: 0.0,
    },
    Bus {
        name: "pcie4-x8",
        source: PCIE_SOURCE,
        model: Model {
            clock_hz: 1.969e9,
            ..PCIE
        },
        stalls: 0.0,
    },
    Bus {
        name: "pcie5-x8",
        source: PCIE_SOURCE,
        model: Model {
            clock_hz: 3.938e9,
            ..PCIE
        },
        stalls: 0.0,
    },
];

impl Bus {
    /// With a fitted stall.
    pub fn with_stall(&self, stall_s: f64) -> Model {
        Model {
            stall_s: stall_s * self.stalls,
            ..self.model
        }
    }
}

/// Content in bits per second at which the bus is occupied for `share` of the time.
pub fn throughput(responses: &Responses, seconds: f64, share: f64) -> f64 {
    responses.response_bytes() as f64 * 8.0 * share / seconds
}

/// The fitted stall: with it, `pci33` is occupied for 95 % of the time by this log at the paper's
/// 1.2 Gb/s of content (section 3.2: the NASA log).
pub fn fitted_stall(responses: &Responses, assumed: &Assumed) -> Option<f64> {
    let seconds = responses.response_bytes() as f64 * 8.0 / 1.2e9 * 0.95;
    let traffic = traffic(responses, None, assumed);
    BUSES[0]
        .model
        .fitted(&traffic, seconds)
        .map(|model| model.stall_s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Size;
    use crate::content::{Cell, simulate};
    use crate::control::Silent;

    #[test]
    fn a_response_has_headers_pieces_and_descriptors() {
        let responses = Responses::from_pairs([(0, 5_000)]);
        let traffic = traffic(&responses, None, &Assumed::default());
        assert_eq!(traffic.bytes.content, 5_000);
        assert_eq!(traffic.bytes.network_headers, 4 * 54);
        assert_eq!(traffic.transfers.content, 5);
        assert_eq!(traffic.bytes.descriptors, 16 * (4 + 1 + 5));
        assert_eq!(traffic.transfers.other, 3);
    }

    #[test]
    fn a_cache_removes_content_and_its_transfers_only() {
        let responses = Responses::from_pairs((0..100).map(|at| (at % 2, 8_192)));
        let cell = Cell {
            size: Size(1 << 20),
            ..Cell::default()
        };
        let results = simulate(&responses, &[cell], 1, &Silent).unwrap();
        let assumed = Assumed::default();
        let without = traffic(&responses, None, &assumed);
        let with = traffic(&responses, Some(&results[0]), &assumed);
        assert_eq!(with.bytes.content, 2 * 8_192);
        assert_eq!(with.transfers.content, 4);
        assert_eq!(with.bytes.network_headers, without.bytes.network_headers);
        assert_eq!(with.bytes.other, without.bytes.other);
        assert_eq!(
            with.transfers.descriptors,
            without.transfers.descriptors + 4
        );
    }

    #[test]
    fn the_fit_gives_the_published_throughput() {
        let responses = Responses::from_pairs((0..50).map(|at| (at, 23_000)));
        let assumed = Assumed::default();
        let stall = fitted_stall(&responses, &assumed).unwrap();
        assert!((1e-8..1e-6).contains(&stall), "{stall}");
        let time = BUSES[0]
            .with_stall(stall)
            .time(&traffic(&responses, None, &assumed));
        let rate = throughput(&responses, time.total(), 0.95);
        assert!((rate / 1.2e9 - 1.0).abs() < 1e-9, "{rate}");
    }
}
