//! `fairlead completions` and `fairlead manual`: shell completions and manual pages, generated from
//! the command line definition.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::Cli;
use crate::screen::{print, print_error};

/// Arguments of `fairlead completions`.
#[derive(Clone, Debug, clap::Args)]
pub struct CompletionsArgs {
    /// Shell to generate completions for
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

/// Arguments of `fairlead manual`.
#[derive(Clone, Debug, clap::Args)]
pub struct ManualArgs {
    /// An existing directory to write to
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
}

/// Writes one manual page per command. The exit code is 1 if a page cannot be written.
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
