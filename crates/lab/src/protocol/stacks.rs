//! The workloads that come with the laboratory: programs made to be traced.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::ValueEnum;

use super::tracer::{Marks, TraceSpec};
use crate::error::LabError;

/// Names the program with the workloads, wherever it is.
const PROGRAM_VARIABLE: &str = "FAIRLEAD_STACKS";
/// The program with the workloads.
const PROGRAM: &str = "fairlead-stacks";

/// An instruction set for which the workloads are built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Isa {
    /// Of PCs and servers.
    #[default]
    #[value(name = "x86_64")]
    X86,
    /// ARM, 64 bits.
    #[value(name = "aarch64")]
    Arm,
}

impl Isa {
    /// The name of the program, and what builds it.
    fn program(self) -> (&'static str, &'static str) {
        match self {
            Self::X86 => (PROGRAM, "make stacks"),
            Self::Arm => ("fairlead-stacks-aarch64", "scripts/stacks --isa aarch64"),
        }
    }
}

/// Limits of what the workloads hold in memory.
const SIZE_MAX: u32 = 65_000;
const PACKETS_MAX: u32 = 10_000_000;
const CONNECTIONS_MAX: u32 = 1_000_000;

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Its name.
    pub name: &'static str,
    /// What it does, in one line.
    pub about: &'static str,
    /// The largest payload, bytes.
    pub size_max: u32,
}

/// All workloads.
pub const STACKS: [Stack; 6] = [
    Stack {
        name: "datapath",
        about: "Fairlead's engine: SYN, head, server's SYN-ACK, full segment, ACK, FINs over IPv4",
        size_max: 1448,
    },
    Stack {
        name: "datapath-ipv6",
        about: "the same over IPv6",
        size_max: 1428,
    },
    Stack {
        name: "smoltcp-tcp",
        about: "smoltcp, two hosts: a message is sent and received by TCP",
        size_max: SIZE_MAX,
    },
    Stack {
        name: "smoltcp-tcp-no-checksums",
        about: "the same without TCP checksums",
        size_max: SIZE_MAX,
    },
    Stack {
        name: "smoltcp-udp",
        about: "smoltcp, two hosts: a message is sent and received by UDP",
        size_max: 8_900,
    },
    Stack {
        name: "smoltcp-udp-no-checksums",
        about: "the same without UDP checksums",
        size_max: 8_900,
    },
];

impl Stack {
    /// The workload of this name.
    ///
    /// # Errors
    /// No workload has this name.
    pub fn named(name: &str) -> Result<Self, LabError> {
        let found = STACKS.iter().find(|stack| stack.name == name);
        found.copied().ok_or_else(|| {
            let names: Vec<&str> = STACKS.iter().map(|stack| stack.name).collect();
            let problem = format!("write one of: {}", names.join(", "));
            LabError::option("--stack", name, problem)
        })
    }
}

/// One run of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackRun {
    /// Which.
    pub stack: Stack,
    /// Payload of a packet or message, bytes.
    pub size: u32,
    /// Packets or messages of each kind.
    pub packets: u32,
    /// Connections among which packets are drawn.
    pub connections: u32,
}

impl StackRun {
    /// What to trace.
    ///
    /// # Errors
    /// A number is out of range, or the program with the workloads is not there.
    pub fn spec(&self) -> Result<TraceSpec, LabError> {
        self.spec_of(program(Isa::X86)?)
    }

    /// The same with another build of the program with the workloads.
    ///
    /// # Errors
    /// A number is out of range.
    pub fn spec_of(&self, program: PathBuf) -> Result<TraceSpec, LabError> {
        let within = |option: &str, value: u32, max: u32| {
            if (1..=max).contains(&value) {
                return Ok(());
            }
            let problem = format!("write a number from 1 to {max}");
            Err(LabError::option(option, value.to_string(), problem))
        };
        within("--size", self.size, self.stack.size_max)?;
        within("--packets", self.packets, PACKETS_MAX)?;
        within("--connections", self.connections, CONNECTIONS_MAX)?;
        let words: Vec<String> = vec![
            self.stack.name.to_owned(),
            self.size.to_string(),
            self.packets.to_string(),
            self.connections.to_string(),
        ];
        let description = [PROGRAM.to_owned()]
            .into_iter()
            .chain(words.iter().cloned());
        Ok(TraceSpec {
            program: program.into_os_string(),
            arguments: words.iter().map(OsString::from).collect(),
            marks: Marks::Own,
            is_quiet: true,
            name: Some(PROGRAM),
            description: Some(description.collect()),
            ..TraceSpec::default()
        })
    }
}

/// The program with the workloads: where the variable says, beside this program, or where
/// `make stacks` builds it.
///
/// # Errors
/// It is not there.
pub fn program(isa: Isa) -> Result<PathBuf, LabError> {
    let (name, recipe) = isa.program();
    built_beside(name, recipe, PROGRAM_VARIABLE)
}

/// A program that is traced: where a variable says, beside this program, or where a recipe builds
/// it.
pub(crate) fn built_beside(name: &str, recipe: &str, variable: &str) -> Result<PathBuf, LabError> {
    if let Some(path) = env::var_os(variable) {
        return Ok(path.into());
    }
    let beside = env::current_exe().unwrap_or_default();
    let folder = beside.parent().unwrap_or(&beside).to_owned();
    let candidates = [
        // In a build folder another one lies beside this program, which is not optimized.
        folder.join("../stacks").join(name),
        folder.join("../../stacks").join(name),
        folder.join("../libexec/fairlead").join(name),
        folder.join(name),
        PathBuf::from("target/stacks").join(name),
    ];
    candidates
        .into_iter()
        .find(|path| path.is_file())
        .ok_or_else(|| {
            LabError::Protocol(format!(
                "{name}, which is to be traced, is not beside this program; build it in the \
                 repository with {recipe}, and name it with {variable}=PATH"
            ))
        })
}

/// The tools that built the program with the workloads, as it says itself.
///
/// # Errors
/// It is not there, or cannot be read.
pub fn tools() -> Result<Vec<String>, LabError> {
    super::tracer::tools(&program(Isa::X86)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_and_unknown_names_are_refused() {
        assert!(Stack::named("lwip").is_err());
        let stack = Stack::named("datapath").unwrap();
        let run = StackRun {
            stack,
            size: 1,
            packets: 1,
            connections: 1,
        };
        for wrong in [
            StackRun { size: 1449, ..run },
            StackRun { packets: 0, ..run },
            StackRun {
                connections: CONNECTIONS_MAX + 1,
                ..run
            },
        ] {
            assert_eq!(wrong.spec().unwrap_err().exit_code(), 2);
        }
    }
}
