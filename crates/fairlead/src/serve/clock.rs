//! Time of this run.

use core::time::Duration;

use fairlead_base::Instant;

/// The monotonic clock. Its origin is the start of this run, or of the run whose connections were
/// taken over.
pub(super) struct Clock {
    /// Kernel monotonic time of the origin, in nanoseconds.
    pub(super) origin_ns: u64,
}

impl Clock {
    pub(super) fn start(earlier: Option<u64>) -> Self {
        let origin_ns = earlier.unwrap_or_else(fairlead_bpf_loader::monotonic_ns);
        Self { origin_ns }
    }

    pub(super) fn now(&self) -> Instant {
        Instant::ZERO + Duration::from_nanos(self.now_ns().saturating_sub(self.origin_ns))
    }

    /// Kernel monotonic time since boot, in nanoseconds.
    pub(super) fn now_ns(&self) -> u64 {
        fairlead_bpf_loader::monotonic_ns()
    }
}
