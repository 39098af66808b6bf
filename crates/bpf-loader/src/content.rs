//! What the programs for content have in common: they read structures of the kernel, are attached
//! to tc before all others, and end with the process.

use std::hash::Hasher as _;
use std::io;

use aya::maps::{Array, Map, MapData, MapError};
use aya::programs::tc::{NlOptions, TcAttachOptions, TcAttachType, qdisc_add_clsact};
use aya::programs::{LinkOrder, ProgramError, SchedClassifier};
use aya::{Btf, BtfError, Ebpf, EbpfError, EbpfLoader};

use siphasher::sip::SipHasher24;

use crate::filter::has_links;
use crate::interfaces::interface_index;
use crate::kernel::take;

/// Before filters that others may have; before Linux 6.6.
const PRIORITY: u16 = 1;
/// A block of a file, as in the kernel's page cache.
pub(crate) const BLOCK_BYTES: u64 = 4_096;
/// Ports that a program compares.
const PORTS: usize = 16;

/// `struct fl_pieces_settings`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct RawSettings {
    page_bytes: u32,
    ports: u32,
    port: [u16; PORTS],
}

const _: () = assert!(size_of::<RawSettings>() == 40);

// SAFETY: plain old bytes without padding, for which every bit pattern is a value.
unsafe impl aya::Pod for RawSettings {}

/// Why packets cannot be looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContentError {
    /// There was no compiler for the program when this one was built.
    #[error("built without kernel programs: clang and libbpf-dev were missing")]
    NotBuiltIn,
    /// The kernel does not describe its types.
    #[error("this kernel has no BTF (/sys/kernel/btf/vmlinux; CONFIG_DEBUG_INFO_BTF): {0}")]
    NoBtf(BtfError),
    /// This process may not load programs that read kernel memory.
    #[error("CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN are needed, outside of a user namespace")]
    Rights,
    /// The kernel refused the program or a map.
    #[error("the kernel refused the program: {0}")]
    Refused(String),
    /// The interface does not take it.
    #[error("the interface does not take the program: {0}")]
    Attach(String),
    /// No interface has this name.
    #[error("there is no such interface in this network namespace")]
    NoInterface,
    /// More ports than the program compares.
    #[error("at most {PORTS} ports")]
    Ports,
    /// A map cannot be used.
    #[error("cannot access a map of the program: {0}")]
    Map(#[from] MapError),
}

/// Loads a program's object for an interface of this network namespace.
pub(crate) fn load(object: &[u8], interface: &str) -> Result<Ebpf, ContentError> {
    load_sized(object, interface, &[])
}

/// The same, with these sizes of maps.
pub(crate) fn load_sized(
    object: &[u8],
    interface: &str,
    sizes: &[(&'static str, u32)],
) -> Result<Ebpf, ContentError> {
    if object.is_empty() {
        return Err(ContentError::NotBuiltIn);
    }
    if interface_index(interface).is_none() {
        return Err(ContentError::NoInterface);
    }
    let btf = Btf::from_sys_fs().map_err(ContentError::NoBtf)?;
    let mut loader = EbpfLoader::new();
    loader.btf(Some(&btf));
    for (name, entries) in sizes {
        loader.map_max_entries(name, *entries);
    }
    loader.load(object).map_err(|error| refused(&error))
}

/// A map of the object.
pub(crate) fn map<M: TryFrom<Map, Error = MapError>>(
    ebpf: &mut Ebpf,
    name: &'static str,
) -> Result<M, ContentError> {
    take(ebpf, name).map_err(|error| ContentError::Refused(error.to_string()))
}

/// What both ends of a link with references put into each packet between them, in place of their
/// secret.
#[must_use]
pub fn token(secret: &[u8]) -> [u8; 8] {
    let mut hash = SipHasher24::new_with_key(b"fairlead content");
    hash.write(secret);
    hash.finish().to_be_bytes()
}

/// Says from which ports packets are looked at; of all, where none is named.
pub(crate) fn pieces_of(ebpf: &mut Ebpf, ports: &[u16]) -> Result<(), ContentError> {
    if ports.len() > PORTS {
        return Err(ContentError::Ports);
    }
    // It stays the object's: programs are loaded with its descriptor.
    let name = "fl_pieces_settings";
    let there = ebpf.map_mut(name);
    let there = there.ok_or_else(|| ContentError::Refused(format!("no map {name}")))?;
    let mut settings: Array<&mut MapData, RawSettings> = there.try_into()?;
    let mut raw = RawSettings {
        page_bytes: page_bytes(),
        ports: ports.len() as u32,
        port: [0; PORTS],
    };
    raw.port[..ports.len()].copy_from_slice(ports);
    Ok(settings.set(0, raw, 0)?)
}

/// Loads a program of the object into the kernel, and puts it before all others at the interface.
pub(crate) fn attach(
    ebpf: &mut Ebpf,
    name: &str,
    interface: &str,
    direction: TcAttachType,
) -> Result<(), ContentError> {
    let program: &mut SchedClassifier = ebpf
        .program_mut(name)
        .and_then(|program| program.try_into().ok())
        .ok_or_else(|| ContentError::Refused(format!("no program {name}")))?;
    program.load().map_err(|error| refused_program(&error))?;
    by_link(program, interface, direction).map_err(|error| ContentError::Attach(said(&error)))
}

/// By a link where the kernel has them (6.6), else as a filter, which a process that is killed
/// leaves behind.
fn by_link(
    program: &mut SchedClassifier,
    interface: &str,
    direction: TcAttachType,
) -> Result<(), ProgramError> {
    let options = match has_links() {
        true => TcAttachOptions::TcxOrder(LinkOrder::first()),
        false => {
            // It may be there already.
            let _ = qdisc_add_clsact(interface);
            TcAttachOptions::Netlink(NlOptions {
                priority: PRIORITY,
                ..NlOptions::default()
            })
        }
    };
    // The program keeps the link.
    let attached = program.attach_with_options(interface, direction, options);
    attached.map(drop)
}

fn page_bytes() -> u32 {
    // SAFETY: a number is asked for, no memory is passed.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u32::try_from(bytes).unwrap_or(4_096)
}

/// An error with its causes.
fn said(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(one) = cause {
        let more = one.to_string();
        if !text.contains(&more) {
            text += &format!(": {more}");
        }
        cause = one.source();
    }
    // What the verifier writes is long; its last lines have the reason.
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}

fn is_about_rights(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(one) = cause {
        let kernel = one.downcast_ref::<io::Error>();
        if kernel.is_some_and(|error| error.raw_os_error() == Some(libc::EPERM)) {
            return true;
        }
        cause = one.source();
    }
    false
}

fn refused(error: &EbpfError) -> ContentError {
    match is_about_rights(error) {
        true => ContentError::Rights,
        false => ContentError::Refused(said(error)),
    }
}

fn refused_program(error: &ProgramError) -> ContentError {
    match is_about_rights(error) {
        true => ContentError::Rights,
        false => ContentError::Refused(said(error)),
    }
}
