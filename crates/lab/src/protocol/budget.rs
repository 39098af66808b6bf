//! Budgets: what each packet of the datapath may cost, exactly.
//!
//! The same source, built by the same tools, executes the same instructions, so that a difference
//! of one is a change of the code. A file holds the numbers and names the tools; other tools make
//! other code, which is not compared.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use fairlead_trace::references::Header;
use serde::{Deserialize, Serialize};

use super::bpf_paths::{self, PathCounts};
use super::packets::{Counter, KindCounts};
use super::stacks::{Stack, StackRun, tools};
use super::tracer::{GuestSpec, trace};
use crate::control::Control;
use crate::error::{LabError, in_words};

/// First lines of the file.
const HEAD: &str = "\
# What each packet of the datapath costs, exactly, if the workloads are built by these tools:
# instructions, branches, and cache lines of 64 bytes that are touched, medians over packets.
# `make stacks`, then `fairlead lab protocol budget update` writes it anew; its diff is reviewed.
# [kernel]: instructions of the kernel program, of what it calls, and lines of its large maps;
# `scripts/stacks --kernel`, then `budget update --kernel FILE`.

";
/// Workloads that have budgets.
const STACKS: [&str; 2] = ["datapath", "datapath-ipv6"];
/// Payload of full segments, bytes.
const SIZE: u32 = 1428;
const PACKETS: u32 = 50;
const CONNECTIONS: u32 = 100;
/// Frames of each kind through the kernel program.
const FRAMES: u32 = 20;
/// The kernel program among workloads.
const KERNEL: &str = "kernel program";

/// A file of budgets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budgets {
    /// Compilers of the workloads, and the emulator.
    pub tools: Vec<String>,
    /// The emulated processor.
    pub cpu: String,
    /// By workload and kind of packet.
    pub packet: BTreeMap<String, BTreeMap<String, Cost>>,
    /// The kernel program's; `None` if that was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelBudgets>,
}

/// What frames cost in the kernel program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelBudgets {
    /// The kernel, and the compiler of the kernel program.
    pub tools: Vec<String>,
    /// By kind of packet.
    pub packet: BTreeMap<String, PathCost>,
}

/// What one frame costs in the kernel program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathCost {
    /// Instructions of the program itself.
    pub own: u64,
    /// Instructions of what it calls.
    pub helpers: u64,
    /// Lines of 64 bytes of large maps that either reads or writes.
    pub map_lines: u64,
}

/// Numbers of a packet, with their names.
trait Named: Copy {
    fn named(&self) -> Vec<(&'static str, u64)>;
}

/// What one packet costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// Instructions.
    pub instructions: u64,
    /// Jumps, calls and returns.
    pub branches: u64,
    /// Lines of 64 bytes with instructions.
    pub instruction_lines: u64,
    /// Lines of 64 bytes that are read or written.
    pub data_lines: u64,
}

impl Cost {
    fn of(counts: &KindCounts) -> Self {
        Self {
            instructions: counts.instructions.median,
            branches: counts.branches.map_or(0, |branches| branches.median),
            instruction_lines: counts.instruction_lines_64.median,
            data_lines: counts.data_lines_64.median,
        }
    }
}

impl Named for Cost {
    fn named(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("instructions", self.instructions),
            ("branches", self.branches),
            ("instruction lines", self.instruction_lines),
            ("data lines", self.data_lines),
        ]
    }
}

impl PathCost {
    fn of(counts: &PathCounts) -> Self {
        Self {
            own: counts.own.median,
            helpers: counts.helpers.median,
            map_lines: counts.map_lines.median,
        }
    }
}

impl Named for PathCost {
    fn named(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("own instructions", self.own),
            ("helpers' instructions", self.helpers),
            ("map lines", self.map_lines),
        ]
    }
}

/// A number that is not as the file says; `None` where a packet is only on one side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The workload.
    pub stack: String,
    /// The kind of packet.
    pub packet: String,
    /// What was counted.
    pub what: &'static str,
    /// What the file says.
    pub budget: Option<u64>,
    /// What was measured.
    pub measured: Option<u64>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            stack,
            packet,
            what,
            ..
        } = self;
        write!(f, "{stack}, {packet}: ")?;
        match (self.budget, self.measured) {
            (Some(budget), Some(measured)) => {
                let more = i128::from(measured) - i128::from(budget);
                write!(f, "{measured} {what}, the budget is {budget} ({more:+})")
            }
            (Some(_), None) => write!(f, "has a budget, but was not measured"),
            _ => write!(f, "has no budget"),
        }
    }
}

/// What a comparison found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// These numbers differ; none if all are as the file says.
    Compared(Vec<Difference>),
    /// The workloads were built, or would be traced, by other tools.
    OtherTools {
        /// Of the file.
        budgets: Vec<String>,
        /// Here.
        here: Vec<String>,
    },
}

impl Budgets {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or is no file of budgets: with the line.
    pub fn read(path: &Path) -> Result<Self, LabError> {
        let text = std::fs::read_to_string(path).map_err(|error| LabError::file(path, error))?;
        toml::from_str(&text).map_err(|error| {
            let before = error.span().map_or(0, |span| span.start).min(text.len());
            let line = text.as_bytes()[..before]
                .iter()
                .filter(|byte| **byte == b'\n')
                .count()
                + 1;
            LabError::Plan {
                place: format!("{}:{line}", path.display()),
                problem: in_words(error.message()),
            }
        })
    }

    /// The file's text.
    ///
    /// # Errors
    /// Never for budgets that were measured.
    pub fn text(&self) -> Result<String, LabError> {
        let text = toml::to_string_pretty(self)
            .map_err(|error| LabError::Protocol(format!("the budgets: {error}")))?;
        Ok(format!("{HEAD}{text}"))
    }

    /// Runs the workloads and measures.
    ///
    /// # Errors
    /// They cannot be traced.
    pub fn measure(control: &dyn Control) -> Result<Self, LabError> {
        let mut measured = Self {
            tools: Vec::new(),
            cpu: String::new(),
            packet: BTreeMap::new(),
            kernel: None,
        };
        for name in STACKS {
            let run = StackRun {
                stack: Stack::named(name)?,
                size: SIZE,
                packets: PACKETS,
                connections: CONNECTIONS,
            };
            let mut counter = Counter::new(false);
            let outcome = trace(&run.spec()?, control, &mut |events| counter.add(events))?;
            if let Some(trouble) = outcome.trouble {
                return Err(LabError::Protocol(trouble));
            }
            let header = outcome.header;
            let kinds = counter.finish(&header);
            let costs = kinds.iter().map(|kind| (kind.name.clone(), Cost::of(kind)));
            measured.packet.insert(name.to_owned(), costs.collect());
            measured.tools = tools()?;
            measured.tools.push(header.emulator);
            measured.cpu = header.cpu;
        }
        Ok(measured)
    }

    /// Compares with what was measured; the kernel program apart ([`KernelBudgets::compare`]).
    pub fn compare(&self, measured: &Self) -> Verdict {
        if self.tools != measured.tools || self.cpu != measured.cpu {
            return Verdict::OtherTools {
                budgets: self.tools.clone(),
                here: measured.tools.clone(),
            };
        }
        Verdict::Compared(self.differences(measured))
    }

    /// Numbers that differ, whatever the tools.
    pub fn differences(&self, measured: &Self) -> Vec<Difference> {
        let mut stacks: Vec<&String> = self.packet.keys().chain(measured.packet.keys()).collect();
        stacks.sort();
        stacks.dedup();
        let none = BTreeMap::new();
        let of = |stack: &&String| {
            let [budgets, here] = [self, measured].map(|one| one.packet.get(*stack));
            differences(stack, budgets.unwrap_or(&none), here.unwrap_or(&none))
        };
        stacks.iter().flat_map(of).collect()
    }
}

impl KernelBudgets {
    /// Sends frames through the kernel program in a virtual machine with this kernel, and measures.
    ///
    /// # Errors
    /// It cannot be traced.
    pub fn measure(kernel: &Path, control: &dyn Control) -> Result<Self, LabError> {
        let spec = bpf_paths::spec(kernel, FRAMES)?;
        let (header, counts) = bpf_paths::measure(&spec, control)?;
        Ok(Self::of(&spec, &header, &counts))
    }

    /// What was counted in this machine.
    pub fn of(spec: &GuestSpec, header: &Header, counts: &[PathCounts]) -> Self {
        let mut tools = bpf_paths::compilers(&spec.program);
        tools.extend(header.command.last().cloned());
        let costs = counts
            .iter()
            .map(|one| (one.name.clone(), PathCost::of(one)));
        Self {
            tools,
            packet: costs.collect(),
        }
    }

    /// Compares with what was measured.
    pub fn compare(&self, measured: &Self) -> Verdict {
        if self.tools != measured.tools {
            return Verdict::OtherTools {
                budgets: self.tools.clone(),
                here: measured.tools.clone(),
            };
        }
        Verdict::Compared(self.differences(measured))
    }

    /// Numbers that differ, whatever the tools.
    pub fn differences(&self, measured: &Self) -> Vec<Difference> {
        differences(KERNEL, &self.packet, &measured.packet)
    }
}

fn differences<C: Named>(
    stack: &str,
    budgets: &BTreeMap<String, C>,
    measured: &BTreeMap<String, C>,
) -> Vec<Difference> {
    let mut packets: Vec<&String> = budgets.keys().chain(measured.keys()).collect();
    packets.sort();
    packets.dedup();
    let mut differences = Vec::new();
    for packet in packets {
        let difference = |what, budget, measured| Difference {
            stack: stack.to_owned(),
            packet: packet.clone(),
            what,
            budget,
            measured,
        };
        match (budgets.get(packet), measured.get(packet)) {
            (Some(budget), Some(measured)) => {
                let pairs = budget.named().into_iter().zip(measured.named());
                let unequal = pairs.filter(|(budget, measured)| budget.1 != measured.1);
                differences.extend(
                    unequal.map(|((what, was), (_, is))| difference(what, Some(was), Some(is))),
                );
            }
            (budget, measured) => {
                let first = |cost: &C| cost.named().first().map(|(_, value)| *value);
                differences.push(difference(
                    "instructions",
                    budget.and_then(first),
                    measured.and_then(first),
                ));
            }
        }
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budgets(instructions: u64) -> Budgets {
        let cost = Cost {
            instructions,
            branches: 99,
            instruction_lines: 75,
            data_lines: 93,
        };
        let packets = BTreeMap::from([("spliced ACK".to_owned(), cost)]);
        Budgets {
            tools: vec!["rustc 1.95.0".to_owned()],
            cpu: "Nehalem".to_owned(),
            packet: BTreeMap::from([("datapath".to_owned(), packets)]),
            kernel: None,
        }
    }

    #[test]
    fn one_instruction_more_is_a_difference() {
        let (before, after) = (budgets(847), budgets(848));
        assert_eq!(before.compare(&before), Verdict::Compared(Vec::new()));
        let Verdict::Compared(differences) = before.compare(&after) else {
            panic!("the same tools");
        };
        let said: Vec<String> = differences.iter().map(ToString::to_string).collect();
        let expected = "datapath, spliced ACK: 848 instructions, the budget is 847 (+1)";
        assert_eq!(said, [expected]);
    }

    #[test]
    fn packets_without_a_budget_and_other_tools_are_told() {
        let (before, mut after) = (budgets(847), budgets(847));
        let cost = after.packet["datapath"]["spliced ACK"];
        after
            .packet
            .get_mut("datapath")
            .unwrap()
            .insert("SYN".to_owned(), cost);
        let said = |a: &Budgets, b: &Budgets| a.differences(b)[0].to_string();
        assert_eq!(said(&before, &after), "datapath, SYN: has no budget");
        assert!(said(&after, &before).contains("was not measured"));
        after.tools = vec!["rustc 1.96.0".to_owned()];
        assert!(matches!(before.compare(&after), Verdict::OtherTools { .. }));
    }

    #[test]
    fn files_are_read_as_written_and_errors_have_a_line() {
        let folder = std::env::temp_dir();
        let path = folder.join(format!("fairlead-budgets-{}.toml", std::process::id()));
        std::fs::write(&path, budgets(847).text().unwrap()).unwrap();
        assert_eq!(Budgets::read(&path).unwrap(), budgets(847));
        let wrong = budgets(847).text().unwrap().replace("= 847", "= \"many\"");
        std::fs::write(&path, &wrong).unwrap();
        let line = wrong.lines().position(|line| line.contains("many"));
        let place = format!(".toml:{}: ", line.unwrap() + 1);
        let error = Budgets::read(&path).unwrap_err();
        let _ = std::fs::remove_file(&path);
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(&place), "{error}");
    }
}
