//! Which tests of virtual machines can run here.

use std::path::PathBuf;
use std::process::Command;

use fairlead_lab::protocol::linux;
use fairlead_netns::trial::skip;

/// The kernel; `None` where none is to be traced or can be, with a line in the list of skipped
/// tests unless only `make test-long` would run the test.
pub(crate) fn kernel(test: &str) -> Option<PathBuf> {
    let is_named = std::env::var_os("FAIRLEAD_KERNEL").is_some();
    if std::env::var_os("FAIRLEAD_LONG").is_none() {
        if is_named {
            skip(
                test,
                "a kernel is named, but booted only with FAIRLEAD_LONG=1",
            );
        }
        return None;
    }
    let qemu = Command::new("qemu-system-x86_64").arg("--version").output();
    if qemu.is_err() {
        skip(
            test,
            "no qemu-system-x86_64: apt-get install qemu-system-x86",
        );
        return None;
    }
    match linux::kernel(None) {
        Ok(kernel) => Some(kernel),
        Err(error) => {
            skip(test, &error.to_string());
            None
        }
    }
}
