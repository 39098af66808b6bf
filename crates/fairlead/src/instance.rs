//! Selects the instance that a command acts on.

use std::path::PathBuf;

use crate::config;

/// Options that select an instance.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct InstanceArgs {
    /// Configuration file of the instance [default: $FAIRLEAD_CONFIG, then
    /// /etc/fairlead/fairlead.toml if there is one]
    #[arg(short, long, value_name = "FILE", conflicts_with = "instance")]
    pub config: Option<PathBuf>,
    /// Name of the instance, as an alternative to --config [default: fairlead]
    #[arg(long, value_name = "NAME")]
    pub instance: Option<String>,
}

/// The exit codes, in `--help`, of a command that gives a running instance an order;
/// `docs/operator-tools.md` has the same text.
pub(crate) const ORDER_EXIT_CODES: &str = "Exit codes:
  0  done
  1  refused; standard error gives the reason
  2  invalid command line";

/// The name of an instance without a configured name.
const UNNAMED: &str = "fairlead";

impl InstanceArgs {
    /// The instance's name.
    ///
    /// # Errors
    /// The configuration cannot be loaded, or the name is invalid.
    pub fn name(&self) -> Result<String, String> {
        let path = match &self.instance {
            None => config::path_if_there(self.config.as_deref()),
            Some(_) => None,
        };
        let name = match (path, &self.instance) {
            (Some(path), _) => {
                let loaded = config::load(&path).map_err(|error| error.to_string())?;
                loaded.settings.instance.name
            }
            (None, Some(name)) => name.clone(),
            (None, None) => UNNAMED.to_owned(),
        };
        let fits =
            |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
        if name.is_empty() || name.len() > 64 || !name.chars().all(fits) {
            return Err(format!("{name:?} is not a valid instance name"));
        }
        Ok(name)
    }
}

/// Parses a number of seconds from the command line.
pub(crate) fn seconds(text: &str) -> Result<std::time::Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "expected a number of seconds".to_owned())?;
    if !(0.1..=86_400.0).contains(&seconds) {
        return Err("must be between 0.1 and 86400 seconds".to_owned());
    }
    Ok(std::time::Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Result<String, String> {
        let args = InstanceArgs {
            config: None,
            instance: Some(name.to_owned()),
        };
        args.name()
    }

    #[test]
    fn names_are_no_paths() {
        assert_eq!(named("edge-1.a"), Ok("edge-1.a".to_owned()));
        for wrong in ["", "../x", "a/b", &"n".repeat(65)] {
            assert!(named(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn seconds_are_bounded() {
        assert_eq!(seconds("0.5"), Ok(std::time::Duration::from_millis(500)));
        for wrong in ["0", "-1", "1e9", "x", "NaN", "inf"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
