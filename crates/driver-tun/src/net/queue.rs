//! What the device's queue had no room for. The kernel drops it and tells nobody who reads.

use super::kernel::with_kernel;

/// Packets for the reader of a device that the kernel dropped since the device was made, as it
/// counts them (`tx_dropped`): its queue was full. `None`: there is no such device in the calling
/// thread's network namespace, or the kernel does not answer.
///
/// It waits for others who change network settings, for seconds at worst: not for the thread that
/// reads packets.
pub fn queue_dropped(device: &str) -> Option<u64> {
    with_kernel(async |kernel| kernel.queue_dropped(device).await).ok()?
}
