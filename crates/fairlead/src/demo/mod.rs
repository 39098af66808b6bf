//! `fairlead demo`: the main job at work, with real servers and a real client.
//!
//! Everything runs in network namespaces that the demonstration creates, as root or (for an
//! ordinary user) in a user namespace. Where neither is permitted, the same scenario runs over
//! simulated links. Each request is compared with the switch's own log of it: if another server
//! answered than the one the switch logged, the demonstration fails.

mod client;
mod journal;
mod live;
mod origins;
mod report;
mod scene;
mod simulated;
mod stage;
mod verdict;

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use fairlead_netns::Rights;

use journal::Entry;
use live::Live;
use report::Screen;
use scene::{Before, SECTIONS};
use simulated::Simulated;
use stage::Stage;

/// Arguments of `fairlead demo`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct DemoArgs {
    /// End when everything has been shown, even with a terminal
    #[arg(long)]
    pub once: bool,
    /// Play over simulated links, as where namespaces are not permitted
    #[arg(long)]
    pub simulated: bool,
}

/// Time limit for the switch to stop.
const END_PATIENCE: Duration = Duration::from_secs(60);

/// Runs the demonstration. Call it before starting any thread: an ordinary user's process must
/// enter a user namespace, which the kernel permits only to single-threaded processes.
pub fn run(args: &DemoArgs) -> ExitCode {
    let terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    let screen = Screen::new();
    match play(&screen, args, terminal && !args.once) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(faults) => {
            screen.line(&format!(
                "FAILED: {faults} of the requests above did not go as they must"
            ));
            ExitCode::FAILURE
        }
        Err(error) => {
            screen.line(&format!("FAILED: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Returns the number of requests that went wrong.
fn play(screen: &Screen, args: &DemoArgs, stay: bool) -> Result<usize> {
    let rights = if args.simulated {
        Err("as requested".to_owned())
    } else {
        fairlead_netns::allowed()
            .and_then(|rights| fairlead_netns::tun_allowed().map(|()| rights))
            .map_err(|why| why.to_string())
    };
    match rights {
        Ok(rights) => play_live(screen, rights, stay),
        Err(why) => {
            screen.line(&format!("Over simulated links, because {why}."));
            let mut stage = Simulated::start(&|step| screen.step(step))?;
            let faults = show(screen, &mut stage, &AtomicBool::new(false))?;
            screen.summary(&stage.status()?);
            Ok(faults)
        }
    }
}

fn play_live(screen: &Screen, rights: Rights, stay: bool) -> Result<usize> {
    let as_root = rights == Rights::AsItIs;
    if !as_root {
        fairlead_netns::enter_user_namespace()?;
    }
    let interrupted = watch_for_interrupt()?;
    let mut live = Live::start(as_root, &|step| screen.step(step))?;
    let mut faults = show(screen, &mut live, &interrupted)?;
    if !interrupted.load(Ordering::SeqCst) {
        faults += live.show_local(screen)?;
        faults += live.show_front(screen)?;
        screen.summary(&live.status()?);
    }
    if stay && !interrupted.load(Ordering::SeqCst) {
        remain(screen, &mut live, &interrupted)?;
    }
    match live.end(END_PATIENCE)? {
        Some(status) if status.success() => {}
        Some(status) => bail!("the switch ended with {status}"),
        None => bail!(
            "the switch did not end within {} s of SIGTERM",
            END_PATIENCE.as_secs()
        ),
    }
    Ok(faults)
}

/// Plays all sections on any stage.
fn show(screen: &Screen, stage: &mut dyn Stage, interrupted: &AtomicBool) -> Result<usize> {
    screen.cast(&stage.cast());
    let mut faults = 0;
    for section in &SECTIONS {
        screen.table(section.title);
        let mut seen_as = BTreeSet::new();
        if let Before::End(process) = section.before {
            stage.end_process(process)?;
        }
        for request in section.requests {
            if interrupted.load(Ordering::SeqCst) {
                return Ok(faults);
            }
            if let Some(why) = stage.missing(request) {
                screen.not_shown(&request.title(), &why);
                continue;
            }
            let answers = stage.ask(request)?;
            let entries = match answers.iter().find_map(|answer| answer.local) {
                Some(client) => stage.recorded(client)?,
                None => Vec::new(),
            };
            let row = verdict::judge(request, &answers, &entries);
            faults += usize::from(!row.faults.is_empty());
            screen.row(&request.title(), &row);
            seen_as.extend(verdict::seen_as(&answers));
        }
        screen.seen_as(&seen_as);
    }
    Ok(faults)
}

/// Keeps running until Ctrl-C and shows the switch's decisions.
fn remain(screen: &Screen, live: &mut Live, interrupted: &AtomicBool) -> Result<()> {
    for section in &SECTIONS {
        if let Before::End(process) = section.before {
            live.restart_process(process)?;
        }
    }
    screen.section("The switch runs until Ctrl-C. Try it from another terminal:");
    for request in [
        &SECTIONS[0].requests[0],
        &SECTIONS[0].requests[2],
        &SECTIONS[1].requests[0],
    ] {
        if live.missing(request).is_none() {
            screen.line(&format!("  {}", live.command_for(request)));
        }
    }
    let mut seen = live.records();
    while !interrupted.load(Ordering::SeqCst) {
        for entry in live.records_since(seen) {
            seen += 1;
            match &entry {
                Entry::Decided {
                    client, subject, ..
                }
                | Entry::Refused {
                    client, subject, ..
                } => {
                    let why = verdict::show_why(std::slice::from_ref(&entry));
                    screen.line(&format!("  {client}  {subject}  {why}"));
                }
                Entry::Closed { .. } => {}
            }
        }
        if !live.is_alive() {
            bail!("the switch exited unexpectedly");
        }
    }
    screen.summary(&live.status()?);
    Ok(())
}

/// Becomes true with the first Ctrl-C or SIGTERM.
fn watch_for_interrupt() -> Result<Arc<AtomicBool>> {
    use tokio::signal::unix::{SignalKind, signal};
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
        )
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! { _ = interrupt.recv() => {} _ = terminate.recv() => {} }
        });
        flag.store(true, Ordering::SeqCst);
    });
    Ok(interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_simulated_links_every_request_succeeds() {
        let args = DemoArgs {
            once: true,
            simulated: true,
        };
        assert_eq!(play(&Screen::new(), &args, false).unwrap(), 0);
    }
}
