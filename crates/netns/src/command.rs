//! Finding programs and running the `ip` tool.

use std::path::{Path, PathBuf};

/// Where administrators' programs live; an ordinary user's `PATH` on Debian leaves these out.
const SYSTEM_FOLDERS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Finds a program in `PATH` or in the system's `sbin` folders.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(SYSTEM_FOLDERS.iter().map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_every_machine_has_is_found_and_another_is_not() {
        assert!(program("sh").is_some());
        assert_eq!(program("fairlead-no-such-program"), None);
    }
}
