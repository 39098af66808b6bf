//! `fairlead top`: live rates of a running switch, one line per service and server.

mod plain;
mod rates;
mod rows;
mod terminal;
mod view;

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::admin::{Status, StatusError};
use crate::number::one_or_more;
use crate::screen::{print_error, print_while_read};
use crate::status::{StatusArgs, address, at, fetch, read};

use rates::Meter;
use rows::Table;

/// Arguments of `fairlead top`.
#[derive(Clone, Debug, clap::Args)]
pub struct TopArgs {
    /// Address and port of the admin pages [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDR", conflicts_with = "config", value_parser = at)]
    pub admin: Option<SocketAddr>,
    /// Read the address from this configuration file
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Update interval in seconds (0.1 to 3600)
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub interval: Duration,
    /// Exit after this many updates
    #[arg(short = 'n', long, value_name = "N", value_parser = one_or_more)]
    pub count: Option<u64>,
    /// Print plain tables even on a terminal
    #[arg(long)]
    pub plain: bool,
}

pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "expected a number of seconds".to_owned())?;
    if !(0.1..=3_600.0).contains(&seconds) {
        return Err("must be between 0.1 and 3600 seconds".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Runs until it is stopped. Exit code 0, or 1 if no status could be fetched.
pub fn run(args: &TopArgs) -> ExitCode {
    match shown(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&format!("fairlead top: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

fn shown(args: &TopArgs) -> Result<(), StatusError> {
    let from = StatusArgs {
        admin: args.admin,
        config: args.config.clone(),
        json: false,
    };
    let admin = address(&from)?;
    let first = look(admin)?;
    if std::io::stdout().is_terminal() && !args.plain {
        let last = terminal::show(args, admin, &first)
            .map_err(|error| StatusError(format!("terminal: {error}")))?;
        return last.map_or(Ok(()), Err);
    }
    tables(args, admin, &first)
}

/// Fetches the status once.
fn look(admin: SocketAddr) -> Result<Status, StatusError> {
    read(&fetch(admin)?)
}

/// Prints one plain table per interval until the reader goes away. The first status is only the
/// baseline for the rates. If the switch does not answer, the next interval tries again.
fn tables(args: &TopArgs, admin: SocketAddr, first: &Status) -> Result<(), StatusError> {
    let mut meter = Meter::default();
    let _ = meter.note(first, Instant::now());
    let mut left = args.count;
    let mut last = Ok(());
    while left != Some(0) {
        std::thread::sleep(args.interval);
        let text = match look(admin) {
            Ok(status) => {
                last = Ok(());
                let rates = meter.note(&status, Instant::now());
                plain::render(&Table::of(&status, rates.as_ref()))
            }
            Err(error) => {
                let text = format!("{error}\n\n");
                last = Err(error);
                text
            }
        };
        if !print_while_read(&text) {
            return Ok(());
        }
        left = left.map(|count| count - 1);
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_bounded() {
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "1e9", "x", "NaN", "inf"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
