//! Packets dropped at the device's full queue. The kernel drops them without telling the reader.

use super::kernel::with_kernel;

/// Packets dropped at a device's full queue since it was created, from the kernel's counter
/// (`tx_dropped`). `None` if there is no such device in the calling thread's network namespace, or
/// the kernel does not answer.
///
/// Can block for seconds while other programs change network settings, so it must not run on the
/// packet thread.
pub fn queue_dropped(device: &str) -> Option<u64> {
    with_kernel(async |kernel| kernel.queue_dropped(device).await).ok()?
}
