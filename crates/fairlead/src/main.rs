//! The `fairlead` command.

use std::process::ExitCode;

/// The connection table is large and accessed randomly.
#[global_allocator]
static ALLOCATOR: fairlead_os_memory::HugePages = fairlead_os_memory::HugePages;

fn main() -> ExitCode {
    fairlead::cli::main()
}
