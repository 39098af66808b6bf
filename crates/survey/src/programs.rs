//! Names of kernel programs, those at an interface's tc ingress, and whether any are at its egress.

use std::io;

use aya::programs::tc::TcAttachType;
use aya::programs::{ProgramError, SchedClassifier, loaded_programs};

use crate::netlink::ask;

const RTM_GETTFILTER: u16 = 46;
/// Octets of `struct tcmsg`.
const TC_HEADER_BYTES: usize = 20;
/// `TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_EGRESS)`: the egress hook of `clsact`.
const EGRESS: u32 = 0xffff_fff3;

/// A kernel program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramName {
    /// The kernel's id of it.
    pub id: u32,
    /// The name it was loaded with, up to 15 characters.
    pub name: String,
}

/// The name of the program with this number.
///
/// # Errors
/// Usually missing CAP_SYS_ADMIN.
pub fn program_name(id: u32) -> io::Result<String> {
    for program in loaded_programs() {
        let program = program.map_err(io::Error::other)?;
        if program.id() == id {
            return Ok(String::from_utf8_lossy(program.name()).into_owned());
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// The id of the user who loaded the program with this id, if known.
pub fn loaded_by(id: u32) -> Option<u32> {
    let mut programs = loaded_programs().flatten();
    programs
        .find(|program| program.id() == id)?
        .created_by_uid()
}

/// The kernel's error, without the library's context.
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
/// Usually missing CAP_NET_ADMIN or CAP_SYS_ADMIN, or a kernel without TCX.
pub fn tc_programs(interface: &str) -> io::Result<Vec<ProgramName>> {
    let (_, programs) =
        SchedClassifier::query_tcx(interface, TcAttachType::Ingress).map_err(in_short)?;
    let named = programs.into_iter().map(|program| ProgramName {
        id: program.id(),
        name: String::from_utf8_lossy(program.name()).into_owned(),
    });
    Ok(named.collect())
}

const BPF_PROG_QUERY: libc::c_long = 16;
/// `BPF_TCX_INGRESS` and `BPF_TCX_EGRESS`.
const TCX: [u32; 2] = [46, 47];
/// `BPF_MPROG_MAX`: the kernel's limit per hook.
const PROGRAMS_MAX: usize = 64;

/// `union bpf_attr` as far as the query about an interface's programs reads and writes it.
#[repr(C)]
#[derive(Default)]
struct Query {
    interface: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    ids: u64,
    count: u32,
    pad: u32,
    /// Flags by program, links, flags by link, revision.
    rest: [u64; 4],
}

/// Ids of the programs attached by links at tc ingress of an interface (TCX, Linux 6.6), in order.
/// Unlike names, ids need only CAP_NET_ADMIN.
///
/// # Errors
/// Usually missing CAP_NET_ADMIN. A kernel without TCX is not an error.
pub fn tc_program_ids(index: u32) -> io::Result<Vec<u32>> {
    program_ids(index, TCX[0])
}

fn program_ids(index: u32, attach_type: u32) -> io::Result<Vec<u32>> {
    let mut ids = [0u32; PROGRAMS_MAX];
    let mut query = Query {
        interface: index,
        attach_type,
        ids: ids.as_mut_ptr() as u64,
        count: PROGRAMS_MAX as u32,
        ..Query::default()
    };
    let bytes = size_of::<Query>();
    // SAFETY: the kernel reads and writes at most the given bytes of the attributes, and `count`
    // numbers at `ids`; both live through the call.
    let told = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_QUERY, &raw mut query, bytes) };
    if told >= 0 {
        let count = (query.count as usize).min(PROGRAMS_MAX);
        return Ok(ids[..count].to_vec());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // A kernel that has no such place, or has never had anything there.
        Some(libc::EINVAL | libc::ENOENT) => Ok(Vec::new()),
        _ => Err(error),
    }
}

/// True if programs or filters are attached at the egress of an interface, by links (TCX) or in a
/// `clsact` queueing discipline.
///
/// # Errors
/// Usually missing CAP_NET_ADMIN.
pub fn is_seen_at_egress(index: u32) -> io::Result<bool> {
    let mut question = [0; TC_HEADER_BYTES];
    question[4..8].copy_from_slice(&index.to_ne_bytes());
    question[12..16].copy_from_slice(&EGRESS.to_ne_bytes());
    let filters = ask(libc::NETLINK_ROUTE, RTM_GETTFILTER, true, &question)?;
    Ok(!filters.is_empty() || !program_ids(index, TCX[1])?.is_empty())
}
