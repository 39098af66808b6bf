//! Bytes and transfers by kind, and a model of the bus that carries them.
//!
//! The model is for comparison with the paper's figures 4 and 7 to 11: each transfer costs its
//! bytes at the bus's width and clock, address cycles, and a stall that does not depend on the
//! clock (the paper's main memory stalls, section 6.3).

/// A number per kind of traffic: bytes, or transfers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByKind {
    /// Response bodies that refer to file blocks.
    pub content: u64,
    /// Headers of responses.
    pub application_headers: u64,
    /// Ethernet, IP and TCP headers.
    pub network_headers: u64,
    /// Descriptors that the device fetches.
    pub descriptors: u64,
    /// All else: received packets, generated content.
    pub other: u64,
}

impl ByKind {
    /// Of all kinds.
    pub fn total(&self) -> u64 {
        self.content
            + self.application_headers
            + self.network_headers
            + self.descriptors
            + self.other
    }

    fn each(&self) -> [u64; 5] {
        [
            self.content,
            self.application_headers,
            self.network_headers,
            self.descriptors,
            self.other,
        ]
    }
}

impl core::ops::AddAssign for ByKind {
    fn add_assign(&mut self, other: Self) {
        self.content += other.content;
        self.application_headers += other.application_headers;
        self.network_headers += other.network_headers;
        self.descriptors += other.descriptors;
        self.other += other.other;
    }
}

/// What crosses a bus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes.
    pub bytes: ByKind,
    /// Transfers: one contiguous range of memory each.
    pub transfers: ByKind,
}

/// A bus.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// Bytes per cycle.
    pub width: f64,
    /// Cycles per second.
    pub clock_hz: f64,
    /// Cycles per transfer for address and turn-around.
    pub address_cycles: f64,
    /// Time per transfer during which memory is not ready, s; independent of the clock.
    pub stall_s: f64,
    /// Longest burst; a longer transfer pays `burst_bytes` for each.
    pub burst_max: u64,
    /// Header bytes of each burst.
    pub burst_bytes: f64,
}

/// Time on the bus, s.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Time {
    /// Cycles that carry content.
    pub content: f64,
    /// Cycles that carry response headers.
    pub application_headers: f64,
    /// Cycles that carry network headers.
    pub network_headers: f64,
    /// Cycles that carry descriptors and all else.
    pub other: f64,
    /// Cycles that carry nothing: addresses, burst headers, stalls.
    pub overhead: f64,
}

impl Time {
    /// Of everything.
    pub fn total(&self) -> f64 {
        self.content + self.application_headers + self.network_headers + self.other + self.overhead
    }
}

impl Model {
    /// The time that this traffic occupies the bus.
    pub fn time(&self, traffic: &Traffic) -> Time {
        let per_byte = 1.0 / (self.width * self.clock_hz);
        let bytes = &traffic.bytes;
        let carry = |bytes: u64| bytes as f64 * per_byte;
        let mut overhead = 0.0;
        for (bytes, transfers) in bytes.each().into_iter().zip(traffic.transfers.each()) {
            let per_transfer = self.address_cycles / self.clock_hz + self.stall_s;
            let bursts = (bytes as f64 / self.burst_max as f64).max(transfers as f64);
            overhead += transfers as f64 * per_transfer + bursts * self.burst_bytes * per_byte;
        }
        Time {
            content: carry(bytes.content),
            application_headers: carry(bytes.application_headers),
            network_headers: carry(bytes.network_headers),
            other: carry(bytes.descriptors) + carry(bytes.other),
            overhead,
        }
    }

    /// The stall per transfer with which this traffic takes `seconds`; `None` if it takes longer
    /// without any stall.
    #[must_use]
    pub fn fitted(self, traffic: &Traffic, seconds: f64) -> Option<Self> {
        let without = Self {
            stall_s: 0.0,
            ..self
        };
        let rest = seconds - without.time(traffic).total();
        let transfers = traffic.transfers.total();
        (rest >= 0.0 && transfers > 0).then(|| Self {
            stall_s: rest / transfers as f64,
            ..self
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PCI: Model = Model {
        width: 8.0,
        clock_hz: 33e6,
        address_cycles: 2.0,
        stall_s: 0.0,
        burst_max: u64::MAX,
        burst_bytes: 0.0,
    };

    fn traffic() -> Traffic {
        Traffic {
            bytes: ByKind {
                content: 80_000,
                network_headers: 8_000,
                ..ByKind::default()
            },
            transfers: ByKind {
                content: 60,
                network_headers: 40,
                ..ByKind::default()
            },
        }
    }

    #[test]
    fn time_is_that_of_bytes_addresses_and_stalls() {
        let time = PCI.time(&traffic());
        let cycles = |time: f64| (time * PCI.clock_hz).round();
        assert_eq!(cycles(time.content), 10_000.0);
        assert_eq!(cycles(time.network_headers), 1_000.0);
        assert_eq!(cycles(time.overhead), 200.0);
        let stalled = Model {
            stall_s: 1e-6,
            ..PCI
        };
        let overhead = stalled.time(&traffic()).overhead - time.overhead;
        assert!((overhead - 100e-6).abs() < 1e-12);
    }

    #[test]
    fn a_fit_takes_the_given_time() {
        let fitted = PCI.fitted(&traffic(), 1e-3).expect("slow enough");
        assert!((fitted.time(&traffic()).total() - 1e-3).abs() < 1e-12);
        assert_eq!(PCI.fitted(&traffic(), 1e-6), None);
    }

    #[test]
    fn bursts_pay_for_their_headers() {
        let pcie = Model {
            width: 1.0,
            clock_hz: 1.0,
            address_cycles: 0.0,
            burst_max: 256,
            burst_bytes: 24.0,
            ..PCI
        };
        let mut traffic = traffic();
        traffic.bytes.content = 256 * 60 * 2;
        let overhead = pcie.time(&traffic).overhead;
        assert_eq!(overhead, 24.0 * 120.0 + 24.0 * 40.0);
    }
}
