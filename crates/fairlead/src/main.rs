//! The `fairlead` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    fairlead::cli::main()
}
