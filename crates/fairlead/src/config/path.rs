//! Where the configuration file is, if the command line does not say.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The environment variable that names it.
const VARIABLE: &str = "FAIRLEAD_CONFIG";
/// Where it is otherwise.
const STANDARD: &str = "/etc/fairlead/fairlead.toml";
/// Where the systemd unit of earlier versions had it: read for one more release.
const EARLIER: &str = "/etc/fairlead.toml";

/// The file of `--config`, else of `$FAIRLEAD_CONFIG`, else [`STANDARD`]. It need not exist.
pub fn path_or_standard(given: Option<&Path>) -> PathBuf {
    choose(given, std::env::var_os(VARIABLE), Path::is_file)
}

/// What is to be said of a path that nobody has named.
pub fn advice(given: Option<&Path>, path: &Path) -> Option<String> {
    let is_earlier = given.is_none() && path == Path::new(EARLIER);
    is_earlier.then(|| {
        format!(
            "{EARLIER} is read because there is no {STANDARD}; move it there: the next release \
             does not look for it"
        )
    })
}

/// As [`path_or_standard`], of commands that can do without a file.
pub fn path_if_there(given: Option<&Path>) -> Option<PathBuf> {
    let path = choose(given, std::env::var_os(VARIABLE), Path::is_file);
    let is_asked_for = given.is_some() || std::env::var_os(VARIABLE).is_some();
    (is_asked_for || path.is_file()).then_some(path)
}

fn choose(
    given: Option<&Path>,
    variable: Option<OsString>,
    is_file: impl Fn(&Path) -> bool,
) -> PathBuf {
    let named = variable.filter(|path| !path.is_empty()).map(PathBuf::from);
    let [standard, earlier] = [STANDARD, EARLIER].map(PathBuf::from);
    match given.map(Path::to_owned).or(named) {
        Some(path) => path,
        None if !is_file(&standard) && is_file(&earlier) => earlier,
        None => standard,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_comes_before_the_variable_and_that_before_the_standard_path() {
        let both = |path: &Path| path.starts_with("/etc");
        let none = |_: &Path| false;
        let given = Some(Path::new("a.toml"));
        let named = || Some(OsString::from("b.toml"));
        assert_eq!(choose(given, named(), both), Path::new("a.toml"));
        assert_eq!(choose(None, named(), both), Path::new("b.toml"));
        let empty = Some(OsString::new());
        assert_eq!(choose(None, empty, both), Path::new(STANDARD));
        assert_eq!(choose(None, None, none), Path::new(STANDARD));
        let old_alone = |path: &Path| path == Path::new(EARLIER);
        assert_eq!(choose(None, None, old_alone), Path::new(EARLIER));
    }
}
