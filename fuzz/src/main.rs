//! The fuzzer for the stable toolchain.
#![forbid(unsafe_code)]

use std::fs;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use fairlead_fuzz::session::{self, Outcome, Plan, Progress};
use fairlead_fuzz::{Target, all, corpus, named};

/// Feeds seeded changes of a corpus to targets until a promise is broken or the time is over.
#[derive(Parser)]
#[command(name = "fairlead-fuzz", version)]
struct Arguments {
    /// The target to run; without it, the targets are listed.
    #[arg(long, value_name = "NAME", conflicts_with = "all")]
    target: Option<String>,
    /// Runs every target, one after the other.
    #[arg(long)]
    all: bool,
    /// How long each target is run.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    seconds: u64,
    /// Where chance begins.
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    seed: u64,
    /// Runs the target on this one file; a broken promise panics as it would anywhere.
    #[arg(long, value_name = "FILE", requires = "target")]
    input: Option<PathBuf>,
    /// Where to begin; `fuzz/corpus/TARGET` unless given.
    #[arg(long, value_name = "FOLDER", requires = "target")]
    corpus: Option<PathBuf>,
    /// Writes inputs that show something new into this folder.
    #[arg(long, value_name = "FOLDER", requires = "target")]
    keep: Option<PathBuf>,
    /// Removes the files of this folder that show nothing new, and ends.
    #[arg(long, value_name = "FOLDER", requires = "target")]
    distil: Option<PathBuf>,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let targets: Vec<&Target> = match &arguments.target {
        Some(name) => match named(name) {
            Some(target) => vec![target],
            None => bail!("there is no target {name:?}; the targets are {}", names()),
        },
        None if arguments.all => all().iter().collect(),
        None => {
            for target in all() {
                println!("{:<16} {}", target.name, target.about);
            }
            return Ok(ExitCode::SUCCESS);
        }
    };
    if let Some(path) = &arguments.input {
        let input = fs::read(path).with_context(|| path.display().to_string())?;
        (targets[0].run)(&input);
        println!(
            "{}: all promises kept on {}",
            targets[0].name,
            path.display()
        );
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(folder) = &arguments.distil {
        for path in session::superfluous(targets[0], folder)? {
            fs::remove_file(&path).with_context(|| path.display().to_string())?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut broken = false;
    for target in targets {
        broken |= run(target, &arguments)?;
    }
    Ok(if broken {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn names() -> String {
    let names: Vec<_> = all().iter().map(|target| target.name).collect();
    names.join(", ")
}

/// Runs one target; true when it broke a promise.
fn run(target: &Target, arguments: &Arguments) -> anyhow::Result<bool> {
    let home = corpus::home().join(target.name);
    let plan = Plan {
        seed: arguments.seed,
        time: Duration::from_secs(arguments.seconds),
        corpus: arguments.corpus.clone().unwrap_or(home),
        artifacts: corpus::artifacts(),
        keep: arguments.keep.clone(),
    };
    let live = std::io::stderr().is_terminal();
    let outcome = session::run(target, &plan, |progress| {
        if live {
            let left = plan.time.saturating_sub(progress.elapsed).as_secs();
            eprint!("\r{}, {left} s left  ", line(target, progress));
            let _ = std::io::stderr().flush();
        }
    })
    .with_context(|| format!("{}: the corpus in {}", target.name, plan.corpus.display()))?;
    if live {
        eprint!("\r\x1b[K");
    }
    println!("{}", line(target, &outcome.progress));
    tell_find(target, &outcome);
    Ok(outcome.find.is_some())
}

fn line(target: &Target, progress: &Progress) -> String {
    let seconds = progress.elapsed.as_secs_f64().max(0.001);
    format!(
        "{:<16} {:>10} runs  {:>8.0}/s  {:>4} seeds  {:>5} kept  {:>5} notes",
        target.name,
        progress.runs,
        progress.runs as f64 / seconds,
        progress.seeds,
        progress.kept,
        progress.notes
    )
}

fn tell_find(target: &Target, outcome: &Outcome) {
    let Some(find) = &outcome.find else { return };
    println!("  broken promise: {}", find.panic.message);
    println!("  at {}", find.panic.place);
    println!("  {} bytes in {}", find.bytes, find.path.display());
    println!(
        "  again: cargo run -p fairlead-fuzz -- --target {} --input {}",
        target.name,
        find.path.display()
    );
}
