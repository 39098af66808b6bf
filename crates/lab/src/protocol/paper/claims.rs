//! What the stored text of the paper says, held against our stacks. Claims that do not hold are
//! reported like those that do. Where the text gives no number, the bound that decides is ours and
//! is said.

use super::{CONNECTIONS, Scenario};
use crate::paper::Claim;
use crate::protocol::machine::{R4400, ratio};
use crate::protocol::report::{ClockRow, MachineRow, MissRow};
use crate::protocol::tally::{Part, State};
use crate::table::percent;

/// The largest miss rate that the abstract names.
const MISS_RATE_MAX: f64 = 0.28;
/// Cold packets take this many times as long as warm ones, or more: "very different".
const VERY_DIFFERENT: f64 = 1.5;
/// The largest miss rate is this many times the smallest, or more: "varies widely".
const VARIES_WIDELY: f64 = 4.0;
/// A clock this many times as fast…
const CLOCK: f64 = 4.0;
/// …makes packets faster by at least this share of it: "scales well".
const SCALES_WELL: f64 = 0.5;
/// Bytes of a first-level cache of the paper's machine, and of its lines.
const SIZE: u64 = 16 << 10;
/// The stacks of which one is TCP, the other UDP.
const PAIRS: [(&str, &str); 4] = [
    ("smoltcp-tcp", "smoltcp-udp"),
    ("smoltcp-tcp-no-checksums", "smoltcp-udp-no-checksums"),
    ("lwip-tcp", "lwip-udp"),
    ("linux-tcp", "linux-udp"),
];

/// All claims, stack by stack.
pub(super) fn claims(scenarios: &[Scenario]) -> Vec<Claim> {
    let mut names: Vec<&str> = scenarios.iter().map(|one| &one.stack[..]).collect();
    names.dedup();
    let mut claims = Vec::new();
    for name in names {
        let of_stack = |one: &&Scenario| one.stack == name && one.connections <= CONNECTIONS;
        let own: Vec<&Scenario> = scenarios.iter().filter(of_stack).collect();
        claims.push(miss_rates(name, &own));
        claims.push(varies(name, &own));
        claims.push(instructions_dominate(name, &own));
        claims.push(cold_differs(name, &own));
        claims.push(upper_bounds(name, &own));
        claims.push(tcp_gains(name, scenarios, Gain::Ways));
        claims.push(tcp_gains(name, scenarios, Gain::Size));
        claims.push(scales(name, &own));
    }
    claims.sort_by(|a, b| a.says.cmp(&b.says));
    claims
}

fn claim(stack: &str, says: &str, holds: Option<bool>, ours: String) -> Claim {
    Claim {
        says: says.to_owned(),
        trace: stack.to_owned(),
        holds,
        ours,
    }
}

/// Rows of the paper's machine.
fn rows<'a>(own: &[&'a Scenario]) -> Vec<&'a MachineRow> {
    own.iter()
        .flat_map(|one| &one.report.machines)
        .filter(|row| row.machine == R4400)
        .collect()
}

/// Least and most of values; `None` without any.
fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |range, value| {
        let (least, most) = range.unwrap_or((value, value));
        Some((least.min(value), most.max(value)))
    })
}

/// A claim about nothing.
fn nothing(stack: &str, says: &str) -> Claim {
    claim(stack, says, None, "nothing was measured".to_owned())
}

fn miss_rates(stack: &str, own: &[&Scenario]) -> Claim {
    let says = "1: miss rates range from 0 to 28 percent";
    let rows = rows(own);
    let of = |rate: fn(&MachineRow) -> f64| range(rows.iter().map(|row| rate(row)));
    let (Some(instructions), Some(data)) =
        (of(|row| row.i1_miss_ratio), of(|row| row.d1_miss_ratio))
    else {
        return nothing(stack, says);
    };
    let holds = instructions.1.max(data.1) <= MISS_RATE_MAX;
    let ours = format!(
        "instructions {} to {}, data {} to {}",
        percent(instructions.0),
        percent(instructions.1),
        percent(data.0),
        percent(data.1)
    );
    claim(stack, says, Some(holds), ours)
}

fn varies(stack: &str, own: &[&Scenario]) -> Claim {
    let says = "2: cache behavior varies widely with the scenario";
    let rows = rows(own);
    let overall = |row: &MachineRow| row.mcpi_instructions + row.mcpi_data;
    let Some((least, most)) = range(rows.iter().map(|row| overall(row))) else {
        return nothing(stack, says);
    };
    let ours = format!(
        "memory cycles per instruction {least:.2} to {most:.2} (judged: a factor of \
         {VARIES_WIDELY})"
    );
    claim(stack, says, Some(most >= VARIES_WIDELY * least), ours)
}

fn instructions_dominate(stack: &str, own: &[&Scenario]) -> Claim {
    let says = "3: instruction cache behavior has the greatest effect on latency in most cases";
    let rows = rows(own);
    if rows.is_empty() {
        return nothing(stack, says);
    }
    let count = |state: State| {
        let of_state: Vec<_> = rows.iter().filter(|row| row.state == state).collect();
        let dominate = of_state
            .iter()
            .filter(|row| row.mcpi_instructions > row.mcpi_data)
            .count();
        (dominate, of_state.len())
    };
    let ((cold, colds), (warm, warms)) = (count(State::Cold), count(State::Warm));
    let ours = format!("in {cold} of {colds} cold and {warm} of {warms} warm cases");
    claim(stack, says, Some(2 * (cold + warm) > colds + warms), ours)
}

fn cold_differs(stack: &str, own: &[&Scenario]) -> Claim {
    let says = "4: cold cache behavior is very different from warm cache behavior";
    let rows = rows(own);
    let factors = own.iter().flat_map(|one| {
        let of = |state: State| {
            let machines = one.report.machines.iter();
            machines.filter(move |row| row.machine == R4400 && row.state == state)
        };
        of(State::Cold).filter_map(move |cold| {
            let warm = of(State::Warm).find(|warm| warm.kind == cold.kind)?;
            Some(ratio(cold.cycles.mean, warm.cycles.mean))
        })
    });
    let Some((least, most)) = range(factors).filter(|_| !rows.is_empty()) else {
        return nothing(stack, says);
    };
    let ours = format!(
        "a cold packet takes {least:.1} to {most:.1} times as many cycles as a warm one (judged: \
         {VERY_DIFFERENT} in every case)"
    );
    claim(stack, says, Some(least >= VERY_DIFFERENT), ours)
}

fn upper_bounds(stack: &str, own: &[&Scenario]) -> Claim {
    let says = "5: there is an upper bound for what better memory behavior can gain (the stored \
                text has no number)";
    let rows = rows(own);
    let saved = |state: State| {
        let of_state = rows.iter().filter(move |row| row.state == state);
        range(of_state.map(|row| 1.0 - ratio(row.cycles_ideal, row.cycles.mean)))
    };
    let (Some(cold), Some(warm)) = (saved(State::Cold), saved(State::Warm)) else {
        return nothing(stack, says);
    };
    let ours = format!(
        "memory that never waits saves {} to {} of the cycles of cold packets, {} to {} of warm",
        percent(cold.0),
        percent(cold.1),
        percent(warm.0),
        percent(warm.1)
    );
    claim(stack, says, None, ours)
}

/// What a cache is given more of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gain {
    Ways,
    Size,
}

/// Misses of a warm packet, instructions and data together, in caches of this shape: the mean over
/// kinds.
fn misses(one: &Scenario, ways: u32, size: u64) -> f64 {
    let is_it = |row: &&MissRow| {
        row.state == State::Warm && (row.line, row.ways, row.size.0) == (32, ways, size)
    };
    let rows = one.report.misses.iter().filter(is_it);
    let sums = [Part::Instruction, Part::Data].map(|part| {
        let of_part = rows.clone().filter(|row| row.part == part);
        let kinds = of_part.clone().count() as f64;
        ratio(of_part.map(MissRow::per_packet).sum(), kinds)
    });
    sums.iter().sum()
}

/// Misses a packet that are saved by more ways or by a larger cache, from the paper's machine on.
fn saved(one: &Scenario, gain: Gain) -> f64 {
    let before = misses(one, 1, SIZE);
    match gain {
        Gain::Ways => before - misses(one, 4, SIZE),
        Gain::Size => before - misses(one, 1, 4 * SIZE),
    }
}

fn tcp_gains(stack: &str, scenarios: &[Scenario], gain: Gain) -> Claim {
    let (says, what) = match gain {
        Gain::Ways => (
            "6: TCP gains more than UDP from associativity",
            "4 ways instead of 1 in 16 KiB",
        ),
        Gain::Size => (
            "7: TCP gains more than UDP from larger caches",
            "64 KiB instead of 16, direct-mapped,",
        ),
    };
    let Some((tcp, udp)) = PAIRS
        .iter()
        .find(|(tcp, udp)| [*tcp, *udp].contains(&stack))
    else {
        let ours = "this stack has no UDP to be compared with".to_owned();
        return claim(stack, says, None, ours);
    };
    let of = |name: &str, size: u32| {
        let found = scenarios
            .iter()
            .find(|one| one.stack == name && one.size == size);
        found.map(|one| saved(one, gain))
    };
    let sizes = scenarios
        .iter()
        .filter(|one| one.stack == *tcp)
        .map(|one| one.size);
    let gains: Vec<(u32, f64, f64)> = sizes
        .filter_map(|size| Some((size, of(tcp, size)?, of(udp, size)?)))
        .collect();
    if gains.is_empty() {
        return nothing(stack, says);
    }
    let more = gains.iter().filter(|(_, tcp, udp)| tcp > udp).count();
    let each: Vec<String> = gains
        .iter()
        .map(|(size, tcp, udp)| format!("{size} B: {tcp:.1} and {udp:.1}"))
        .collect();
    let ours = format!(
        "{what} save, in misses of a warm packet of TCP and UDP: {}",
        each.join("; ")
    );
    claim(stack, says, Some(2 * more > gains.len()), ours)
}

fn scales(stack: &str, own: &[&Scenario]) -> Claim {
    let says = "8: protocols will scale well with CPU speeds";
    let clocks = own.iter().flat_map(|one| &one.report.clocks);
    let is_it = |row: &&ClockRow| {
        row.machine == R4400 && row.state == State::Warm && (row.clock - CLOCK).abs() < 1e-9
    };
    let Some((least, most)) = range(clocks.filter(is_it).map(|row| row.gain)) else {
        return nothing(stack, says);
    };
    let ours = format!(
        "with a clock × {CLOCK} and memory as before, warm packets are {least:.2} to {most:.2} \
         times as fast (judged: at least {} in every case)",
        CLOCK * SCALES_WELL
    );
    claim(stack, says, Some(least >= CLOCK * SCALES_WELL), ours)
}
