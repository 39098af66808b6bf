//! `fairlead run`: a program with the bypass library.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use super::SOCKET;
use crate::screen::print_error;

/// The library's file.
const LIBRARY: &str = "libfairlead_bypass.so";
/// Names another file.
const LIBRARY_VARIABLE: &str = "FAIRLEAD_BYPASS";
/// Behind the prefix that the program was installed under.
const INSTALLED: &str = "../lib/fairlead";
const PRELOAD: &str = "LD_PRELOAD";

/// The exit codes in `--help`; `docs/operator-tools.md` has the same text.
const EXIT_CODES: &str = "Exit codes: those of the program, and
  2    invalid command line
  126  the program cannot be started, or the bypass library is missing
  127  there is no such program";

/// Arguments of `fairlead run`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct RunArgs {
    /// Where the card is; may be given several times: a connection goes to the card that has its
    /// address
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    pub socket: Vec<PathBuf>,
    /// Offload connections of this port only; may be given several times
    #[arg(long, value_name = "PORT")]
    pub port: Vec<u16>,
    /// Hand a connection off after this many requests: when the program reads again after it has
    /// written
    #[arg(long, value_name = "COUNT", default_value = "2")]
    pub after: u32,
    /// Copy what sendfile(2) sends, instead of naming the range of the file
    #[arg(long)]
    pub copy: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Where the library is.
pub(crate) fn library() -> Result<PathBuf, String> {
    if let Some(named) = std::env::var_os(LIBRARY_VARIABLE) {
        return Ok(named.into());
    }
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let folder = own.parent().ok_or("no folder")?;
    let places = [folder.join(LIBRARY), folder.join(INSTALLED).join(LIBRARY)];
    let found = places.iter().find(|place| place.is_file());
    found.cloned().ok_or_else(|| {
        let tried = places.map(|place| place.display().to_string()).join(", ");
        format!("the bypass library is missing (looked for {tried}; {LIBRARY_VARIABLE} names it)")
    })
}

/// Becomes the program.
pub fn run(args: &RunArgs) -> ExitCode {
    let library = match library() {
        Ok(library) => library,
        Err(why) => {
            print_error(&format!("fairlead run: {why}\n"));
            return ExitCode::from(126);
        }
    };
    let mut preload = library.into_os_string();
    if let Some(others) = std::env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let sockets = match std::env::join_paths(&args.socket) {
        Ok(sockets) => sockets,
        Err(error) => {
            print_error(&format!("fairlead run: --socket: {error}\n"));
            return ExitCode::from(2);
        }
    };
    let ports: Vec<String> = args.port.iter().map(u16::to_string).collect();
    let Some((program, arguments)) = args.command.split_first() else {
        return ExitCode::from(2);
    };
    let mut command = Command::new(program);
    command.args(arguments).env(PRELOAD, preload);
    command.env("FAIRLEAD_OFFLOAD_SOCKET", sockets);
    command.env("FAIRLEAD_OFFLOAD_PORTS", ports.join(","));
    command.env("FAIRLEAD_OFFLOAD_AFTER", args.after.to_string());
    command.env("FAIRLEAD_OFFLOAD_COPY", if args.copy { "1" } else { "0" });
    let error = command.exec();
    print_error(&format!("fairlead run: {}: {error}\n", program.display()));
    ExitCode::from(match error.kind() {
        io::ErrorKind::NotFound => 127,
        _ => 126,
    })
}
