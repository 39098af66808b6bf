//! `fairlead completions` and `fairlead manual`: what a shell and man(1) know of the command line,
//! made of the command line itself.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::Cli;
use crate::screen::{print, print_error};

/// What `fairlead completions` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct CompletionsArgs {
    /// For which shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Writes a shell's completions to standard output.
pub fn completions(args: &CompletionsArgs) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "fairlead", &mut script);
    print(&String::from_utf8_lossy(&script));
    ExitCode::SUCCESS
}

/// What `fairlead manual` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct ManualArgs {
    /// The folder, which there is already
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
}

/// Writes the manual pages, one a command: 1 when that fails.
pub fn manual(args: &ManualArgs) -> ExitCode {
    let command = Cli::command().disable_help_subcommand(true);
    match clap_mangen::generate_to(command, &args.folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let folder = args.folder.display();
            print_error(&format!("fairlead manual: {folder}: {error}\n"));
            ExitCode::FAILURE
        }
    }
}
