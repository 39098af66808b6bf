//! A link from a server that blocks of files cross as references: its two ends.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Instant;

use fairlead_bpf_loader::{ReferCounts, ReferProgram, ResolveCounts, ResolveProgram};
use fairlead_driver_tun::EndSignals;
use serde_json::{Value, json};

use super::live::Live;
use super::{LinkArgs, ReferArgs, ResolveArgs};
use crate::screen::Side::{Left, Right};
use crate::screen::{bytes, columns, grouped, print_error, print_while_read};

/// How often clock and signals are looked at.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(20);
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 16..=4_096;

/// Exit code 0, or 1 if it could not run.
pub(super) fn refer(args: &ReferArgs) -> ExitCode {
    let run = || {
        let secret = read_secret(&args.link)?;
        let epoch = getrandom::u32().map_err(|error| error.to_string())?;
        let size = args.link.size.0;
        let program = ReferProgram::attach(&args.interface, &args.port, &secret, size, epoch)
            .map_err(|error| format!("{}: {error}", args.interface))?;
        until_the_end(&args.link, &args.interface, "referring", || {
            refer_report(&program.counts())
        })
    };
    finish("refer", run())
}

/// Exit code 0, or 1 if it could not run.
pub(super) fn resolve(args: &ResolveArgs) -> ExitCode {
    let run = || {
        let secret = read_secret(&args.link)?;
        let program = ResolveProgram::attach(&args.interface, &secret, args.link.size.0)
            .map_err(|error| format!("{}: {error}", args.interface))?;
        until_the_end(&args.link, &args.interface, "resolving", || {
            resolve_report(&program.counts())
        })
    };
    finish("resolve", run())
}

fn finish(command: &str, run: Result<(), String>) -> ExitCode {
    match run {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            print_error(&format!("fairlead content {command}: {why}\n"));
            ExitCode::FAILURE
        }
    }
}

fn read_secret(link: &LinkArgs) -> Result<Vec<u8>, String> {
    let path = link.secret.display();
    let text = std::fs::read(&link.secret).map_err(|error| format!("{path}: {error}"))?;
    let secret = text.trim_ascii();
    match SECRET_BYTES.contains(&secret.len()) {
        true => Ok(secret.to_vec()),
        false => Err(format!("{path}: a secret has 16 to 4,096 bytes")),
    }
}

/// One row of a report: its name in JSON, in the table, and its number.
type Row = (&'static str, &'static str, u64);

fn refer_report(counts: &ReferCounts) -> Vec<Row> {
    vec![
        ("packets", "packets", counts.packets),
        ("content_bytes", "content", counts.content_bytes),
        (
            "referred_bytes",
            "sent as references",
            counts.referred_bytes,
        ),
        ("references", "packets of references", counts.references),
        ("list_bytes", "references and inserts", counts.list_bytes),
        ("inserts", "blocks inserted", counts.inserts),
        ("held", "inserts confirmed", counts.held),
        ("replaced", "blocks replaced", counts.replaced),
        ("unknown", "unknown at the far end", counts.unknown),
        ("dirty_bytes", "not written back yet", counts.dirty_bytes),
        ("strange", "strange packets", counts.strange),
        ("busy", "blocks busy", counts.busy),
        ("failed", "packets without memory", counts.failed),
    ]
}

fn resolve_report(counts: &ResolveCounts) -> Vec<Row> {
    vec![
        ("lists", "packets", counts.lists),
        ("references", "packets of references", counts.references),
        ("segments", "segments made of them", counts.segments),
        ("resolved_bytes", "payload of these", counts.bytes),
        ("stored", "blocks kept", counts.stored),
        ("unknown", "packets unknown", counts.unknown),
        ("replaced", "blocks replaced meanwhile", counts.replaced),
        ("damaged", "blocks damaged", counts.damaged),
        ("strange", "strange packets", counts.strange),
        ("invalid", "invalid lists", counts.invalid),
        ("busy", "blocks busy", counts.busy),
        ("failed", "segments without memory", counts.failed),
    ]
}

/// Runs until a signal, or for as long as was asked for; shows what happens.
fn until_the_end(
    link: &LinkArgs,
    interface: &str,
    what: &str,
    report: impl Fn() -> Vec<Row>,
) -> Result<(), String> {
    let signals = EndSignals::take_over().map_err(|error| format!("signals: {error}"))?;
    let begun = Instant::now();
    let until = link.watch.duration.map(|duration| begun + duration);
    let is_live = !link.watch.json && std::io::stdout().is_terminal();
    let mut live = Live::default();
    let table = |rows: &[Row]| {
        let head = format!("{interface}: {what} blocks, a store of {}\n\n", link.size);
        head + &columns(
            2,
            &[Left, Right],
            &rows.iter().map(cells).collect::<Vec<_>>(),
        )
    };
    if !is_live {
        print_error(&format!("{what} at {interface}\n"));
    }
    let mut next = begun;
    loop {
        let now = Instant::now();
        let signal = signals.poll_signal().map_err(|error| error.to_string())?;
        if signal.is_some() || until.is_some_and(|until| now >= until) {
            break;
        }
        if is_live && now >= next {
            next = now + link.watch.interval;
            if !live.show(&table(&report())) {
                return Ok(()); // nobody reads
            }
        }
        std::thread::sleep(PAUSE);
    }
    let rows = report();
    if link.watch.json {
        print_while_read(&format!("{:#}\n", document(link, interface, begun, &rows)));
    } else if is_live {
        live.show(&table(&rows));
    } else {
        print_while_read(&table(&rows));
    }
    Ok(())
}

fn cells(row: &Row) -> Vec<String> {
    let (key, name, number) = *row;
    let shown = match key.ends_with("bytes") {
        true => bytes(number),
        false => grouped(number),
    };
    vec![name.to_owned(), shown]
}

fn document(link: &LinkArgs, interface: &str, begun: Instant, rows: &[Row]) -> Value {
    let mut document = json!({
        "interface": interface,
        "seconds": begun.elapsed().as_secs_f64(),
        "size_bytes": link.size.0,
    });
    for (key, _, number) in rows {
        document[*key] = json!(number);
    }
    document
}
