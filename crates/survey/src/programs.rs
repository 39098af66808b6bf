//! Names of kernel programs, those at an interface's tc ingress, and whether any are at its egress.

use std::io;

use aya::programs::tc::TcAttachType;
use aya::programs::{ProgramError, SchedClassifier, loaded_programs};

use crate::netlink::ask;

const RTM_GETTFILTER: u16 = 46;
/// Octets of `struct tcmsg`.
const TC_HEADER_BYTES: usize = 20;
/// `TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_EGRESS)`: where `clsact` keeps what is for sent packets.
const EGRESS: u32 = 0xffff_fff3;

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

/// Whether programs or filters see what is sent out of an interface: by links (TCX, where there is
/// that) or in a `clsact` queueing discipline.
///
/// # Errors
/// Mostly that looking takes CAP_NET_ADMIN.
pub fn is_seen_at_egress(interface: &str, index: u32) -> io::Result<bool> {
    let mut question = [0; TC_HEADER_BYTES];
    question[4..8].copy_from_slice(&index.to_ne_bytes());
    question[12..16].copy_from_slice(&EGRESS.to_ne_bytes());
    let filters = ask(libc::NETLINK_ROUTE, RTM_GETTFILTER, true, &question)?;
    // Before Linux 6.6 there are no links to be asked for.
    let linked = SchedClassifier::query_tcx(interface, TcAttachType::Egress);
    Ok(!filters.is_empty() || linked.is_ok_and(|(_, programs)| !programs.is_empty()))
}
