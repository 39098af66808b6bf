//! Names of kernel programs, and those at an interface's tc ingress.

use std::io;

use aya::programs::tc::TcAttachType;
use aya::programs::{ProgramError, SchedClassifier, loaded_programs};

/// A kernel program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramName {
    /// The kernel's number for it.
    pub id: u32,
    /// The name it was loaded with, up to 15 characters.
    pub name: String,
}

/// The name of the program with this number.
///
/// # Errors
/// Mostly that looking takes CAP_SYS_ADMIN.
pub fn program_name(id: u32) -> io::Result<String> {
    for program in loaded_programs() {
        let program = program.map_err(io::Error::other)?;
        if program.id() == id {
            return Ok(String::from_utf8_lossy(program.name()).into_owned());
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// The number of the user who loaded the program with this number; `None` when that is not known.
pub fn loaded_by(id: u32) -> Option<u32> {
    let mut programs = loaded_programs().flatten();
    programs
        .find(|program| program.id() == id)?
        .created_by_uid()
}

/// What the kernel said, without the library's words around it.
fn in_short(error: ProgramError) -> io::Error {
    let mut cause: &dyn core::error::Error = &error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    io::Error::other(cause.to_string())
}

/// Programs attached by links at the tc ingress of an interface (TCX, Linux 6.6), in their order.
///
/// # Errors
/// Mostly that looking takes CAP_NET_ADMIN and CAP_SYS_ADMIN, or that the kernel has no TCX.
pub fn tc_programs(interface: &str) -> io::Result<Vec<ProgramName>> {
    let (_, programs) =
        SchedClassifier::query_tcx(interface, TcAttachType::Ingress).map_err(in_short)?;
    let named = programs.into_iter().map(|program| ProgramName {
        id: program.id(),
        name: String::from_utf8_lossy(program.name()).into_owned(),
    });
    Ok(named.collect())
}
