//! Packets for the engine that found the device's queue full. The kernel alone counts them, since
//! the device was made; this run's are those since it began.

use std::sync::atomic::{AtomicU64, Ordering};

use fairlead_driver_tun::net;

#[derive(Debug)]
pub(super) struct DeviceQueue {
    device: String,
    /// Dropped before this run, of a device that an earlier one left.
    before: u64,
    dropped: AtomicU64,
}

impl DeviceQueue {
    /// Of the device of this name, which is there.
    pub(super) fn of(device: &str) -> Self {
        Self::from(device, net::queue_dropped(device).unwrap_or(0))
    }

    fn from(device: &str, before: u64) -> Self {
        Self {
            device: device.to_owned(),
            before,
            dropped: AtomicU64::new(0),
        }
    }

    /// Asks the kernel, which may take its time: not for the thread that reads packets.
    pub(super) fn look(&self) {
        self.note(net::queue_dropped(&self.device));
    }

    /// A device that is gone, or another of its name, leaves the last value.
    fn note(&self, told: Option<u64>) {
        let since = told.unwrap_or(0).saturating_sub(self.before);
        self.dropped.fetch_max(since, Ordering::Relaxed);
    }

    /// Since this run began, as far as it was looked at.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_earlier_run_lost_is_not_counted_and_what_was_counted_stays() {
        let queue = DeviceQueue::from("fairlead0", 40);
        for (told, dropped) in [
            (Some(40), 0),
            (Some(47), 7),
            (None, 7),
            (Some(3), 7),
            (Some(50), 10),
        ] {
            queue.note(told);
            assert_eq!(queue.dropped(), dropped, "{told:?}");
        }
    }
}
