//! Where the time of two processors goes, by samples of `perf` in equal distances of time: no
//! counters of the processor are needed.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::error::LabError;
use crate::protocol::layers::Patterns;

/// Between two samples of a processor, ns.
pub const PERIOD_NS: u64 = 200_000;
/// The bypass library's file.
const LIBRARY: &str = "libfairlead_bypass";
/// Name of its layer, and of what belongs to the program itself.
pub const BYPASS: &str = "bypass library";
/// The layer of a program's own instructions, which is no part of the stack.
pub const PROGRAM: &str = "program";
const COPIES: &str = "copies";
const KERNEL: &str = "[kernel";
/// Beginnings of functions in which an idle processor is.
const IDLE: [&str; 12] = [
    "pv_native_safe_halt",
    "native_safe_halt",
    "default_idle",
    "acpi_safe_halt",
    "acpi_idle_do_entry",
    "mwait_idle",
    "intel_idle",
    "poll_idle",
    "cpuidle_",
    "do_idle",
    "arch_cpu_idle",
    "haltpoll",
];

/// Time by layer, in ns.
pub type Layers = BTreeMap<String, f64>;

/// What was seen while it was sampled.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    /// The host's processor, without its idle time.
    pub host: Layers,
    /// Of the card's processor: the card's processes, which is their calls of the kernel too.
    pub card: Layers,
    /// All of the card's processor that is not idle: the card, the client, and packets of both.
    pub card_processor_ns: f64,
}

/// The processors that are sampled, and who is whose.
#[derive(Clone, Copy, Debug)]
pub struct Who<'a> {
    /// The host's processor.
    pub host: u32,
    /// The processor of card and client.
    pub card: u32,
    /// The card's processes.
    pub cards: &'a [u32],
    /// The programs on the host. What others do there in user space is not counted.
    pub programs: &'a [u32],
}

/// Samples the processors of host and card for this time, into a file.
///
/// # Errors
/// `perf` is missing, or may not look.
pub fn record(file: &Path, seconds: u64, processors: [u32; 2]) -> Result<(), LabError> {
    let [host, card] = processors;
    // What perf itself does must not be on the host's processor.
    let mut record = Command::new("taskset");
    record.args(["-c", &card.to_string(), "perf", "record", "-q"]);
    record.args(["-e", "cpu-clock", "-C", &format!("{host},{card}")]);
    record.args(["-c", &PERIOD_NS.to_string(), "-o"]).arg(file);
    record.args(["--", "sleep", &seconds.to_string()]);
    said(&mut record).map(drop)
}

/// What such a file has. That takes both processors, so nothing should be measured meanwhile.
///
/// # Errors
/// The file cannot be read.
pub fn read(file: &Path, who: Who<'_>) -> Result<Samples, LabError> {
    let mut script = Command::new("perf");
    script.args(["script", "-F", "pid,cpu,ip,sym,dso", "-i"]);
    let text = said(script.arg(file))?;
    Ok(sum(&text, &Patterns::known()?, who))
}

/// What a command wrote to standard output.
pub(super) fn said(command: &mut Command) -> Result<String, LabError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => LabError::Machine(format!(
            "{name} is missing (apt-get install linux-perf iproute2 ethtool util-linux nginx)"
        )),
        _ => LabError::Machine(format!("{name}: {error}")),
    })?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        let arguments: Vec<_> = command
            .get_args()
            .map(|one| one.to_string_lossy())
            .collect();
        let arguments = arguments.join(" ");
        return Err(LabError::Machine(format!(
            "{name} {arguments}: {}",
            why.trim()
        )));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// One line of `perf script`: process, processor, function, and the file it is from.
fn parse(line: &str) -> Option<(u32, u32, &str, &str)> {
    let (front, file) = line.trim_end().rsplit_once(" (")?;
    let mut words = front.split_whitespace();
    let process = words.next()?.parse().ok()?;
    let processor = words.next()?.trim_matches(['[', ']']).parse().ok()?;
    let _address = words.next()?;
    Some((
        process,
        processor,
        words.next()?,
        file.trim_end_matches(')'),
    ))
}

fn sum(text: &str, patterns: &Patterns, who: Who<'_>) -> Samples {
    let mut samples = Samples::default();
    let each = PERIOD_NS as f64;
    for (process, processor, function, file) in text.lines().filter_map(parse) {
        if process == 0 && IDLE.iter().any(|start| function.starts_with(start)) {
            continue;
        }
        let layers = if processor == who.host {
            if !who.programs.contains(&process) && !file.starts_with(KERNEL) {
                continue;
            }
            &mut samples.host
        } else if processor == who.card {
            samples.card_processor_ns += each;
            if !who.cards.contains(&process) {
                continue;
            }
            &mut samples.card
        } else {
            continue;
        };
        let layer = layer(patterns, function, file);
        *layers.entry(layer.to_owned()).or_default() += each;
    }
    samples
}

/// The layer of a function. What the library copies is a copy, as in the kernel.
fn layer<'a>(patterns: &'a Patterns, function: &str, file: &str) -> &'a str {
    let known = patterns.layer_of_function(function);
    if file.starts_with(KERNEL) || known == COPIES {
        known
    } else if file.contains(LIBRARY) {
        BYPASS
    } else {
        PROGRAM
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
   12 [000]  ffffffff82010db0 tcp_sendmsg ([kernel.kallsyms])
   12 [000]      7f4c2c65d0d1 fairlead_send (/x/libfairlead_bypass.so)
   12 [000]      7f4c2c65d0d1 __memmove_avx_unaligned_erms (/usr/lib/libc.so.6)
   12 [000]      55aa2c65d0d1 main (/usr/bin/program)
   13 [000]      7f4c2c65d0d1 __memmove_avx_unaligned_erms (/usr/lib/libc.so.6)
    0 [000]  ffffffff82010db0 pv_native_safe_halt ([kernel.kallsyms])
    0 [000]  ffffffff82010db0 net_rx_action ([kernel.kallsyms])
   99 [001]  ffffffff82010db0 ip_output ([kernel.kallsyms])
   98 [001]  ffffffff82010db0 ip_output ([kernel.kallsyms])
   99 [002]  ffffffff82010db0 ip_output ([kernel.kallsyms])
nonsense
";

    #[test]
    fn time_goes_to_layers() {
        let who = Who {
            host: 0,
            card: 1,
            cards: &[99],
            programs: &[12],
        };
        let samples = sum(TEXT, &Patterns::known().unwrap(), who);
        let names: Vec<&str> = samples.host.keys().map(String::as_str).collect();
        let expected = [
            "bypass library",
            "copies",
            "devices and softirqs",
            "program",
            "tcp",
        ];
        assert_eq!(names, expected);
        assert!(samples.host.values().all(|ns| *ns == PERIOD_NS as f64));
        assert_eq!(samples.card.len(), 1);
        assert_eq!(samples.card["ip"], PERIOD_NS as f64);
        assert_eq!(samples.card_processor_ns, 2.0 * PERIOD_NS as f64);
    }
}
