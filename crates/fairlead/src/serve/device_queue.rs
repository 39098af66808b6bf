//! Packets to the engine that were dropped because the device's queue was full. Only the kernel
//! counts them, since the device was created; this module reports those of this run.

use std::sync::atomic::{AtomicU64, Ordering};

use fairlead_driver_tun::net;

#[derive(Debug)]
pub(super) struct DeviceQueue {
    device: String,
    /// Dropped before this run, if an earlier run left the device.
    before: u64,
    dropped: AtomicU64,
}

impl DeviceQueue {
    /// For the existing device of this name.
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

    /// Queries the kernel. This can be slow, so it must not run on the packet thread.
    pub(super) fn look(&self) {
        self.note(net::queue_dropped(&self.device));
    }

    /// Keeps the last value if the device is gone or was replaced by another one.
    fn note(&self, told: Option<u64>) {
        let since = told.unwrap_or(0).saturating_sub(self.before);
        self.dropped.fetch_max(since, Ordering::Relaxed);
    }

    /// Drops since this run began, as of the last query.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_only_this_run_and_never_decreases() {
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
