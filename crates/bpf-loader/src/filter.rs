//! Attaching at tc before Linux 6.6, which knows no links there: a filter of a `clsact` queueing
//! discipline, which stays until somebody removes it. Its handle is the instance's, and its program
//! is pinned as a note of it, `filter-NAMESPACE-INTERFACE`, so that what comes later finds it as it
//! would find a link.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use aya::programs::links::Link as _;
use aya::programs::tc::{
    NlOptions, SchedClassifierLink, TcAttachOptions, TcAttachType, TcHandle, qdisc_add_clsact,
};
use aya::programs::{ProgramError, ProgramInfo, SchedClassifier};

use crate::interfaces::{ethernet_interfaces, interface_name};
use crate::pins::{folder_of, network_namespace};

pub(crate) const FILTER: &str = "filter-";

/// The first of the classifiers at an ingress: before rules that others may have.
const PRIORITY: u16 = 1;

/// True when this kernel attaches programs to tc by links (Linux 6.6).
pub(crate) fn has_links() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>());
    let version = (numbers.next(), numbers.next());
    matches!(version, (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (6, 6))
}

/// Attaches a program for as long as the link that is returned lives, or in the place of the one
/// that an earlier run left, without a moment between them.
pub(crate) fn attach(
    program: &mut SchedClassifier,
    interface: &str,
    handle: TcHandle,
) -> Result<SchedClassifierLink, ProgramError> {
    let earlier = match handle {
        TcHandle::AUTO_ASSIGN => None,
        handle => link(interface, handle).ok(),
    };
    let replaced = earlier.map(|link| program.attach_to_link(link));
    let id = match replaced {
        Some(Ok(id)) => id,
        _ => {
            // It may be there already, ours of an earlier run or another's: then it serves as it
            // is.
            let _ = qdisc_add_clsact(interface);
            let filter = TcAttachOptions::Netlink(NlOptions {
                priority: PRIORITY,
                handle,
                ..NlOptions::default()
            });
            program.attach_with_options(interface, TcAttachType::Ingress, filter)?
        }
    };
    program.take_link(id)
}

fn link(interface: &str, handle: TcHandle) -> io::Result<SchedClassifierLink> {
    SchedClassifierLink::attached(interface, TcAttachType::Ingress, PRIORITY, handle, None)
}

/// Where the note of a filter lies in an instance's folder.
pub(crate) fn note(folder: &Path, interface: u32) -> PathBuf {
    folder.join(format!("{FILTER}{}-{interface}", network_namespace()))
}

/// An instance's handle: of no two that are likely to be on one machine the same.
pub(crate) fn handle(folder: &Path) -> TcHandle {
    let name = folder.as_os_str().as_encoded_bytes();
    let hash = name.iter().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    });
    TcHandle::from(hash.max(1))
}

/// Takes the programs of an instance that does not run off the interfaces of this network namespace
/// where they are filters, whether notes of them lie anywhere or not: without a BPF file system
/// there are none. Says which.
pub fn remove_filters(instance: &str) -> Vec<String> {
    if has_links() {
        return Vec::new();
    }
    let handle = handle(&folder_of(instance));
    let interfaces = ethernet_interfaces().unwrap_or_default().into_iter();
    let removed = interfaces
        .filter(|interface| link(interface, handle).is_ok_and(|there| there.detach().is_ok()));
    removed
        .map(|interface| format!("the program at {interface}"))
        .collect()
}

/// What a note says: the program's id, and the interface's index (0 once that is gone, and its
/// network namespace or it alone with it).
pub(crate) fn at(note: &Path) -> io::Result<(u32, u32)> {
    let program = ProgramInfo::from_pin(note).map_err(io::Error::other)?;
    let (namespace, interface) = parts(note).ok_or(io::ErrorKind::InvalidData)?;
    let is_there = match namespace == network_namespace() {
        true => interface_name(interface).is_some(),
        false => is_alive(namespace),
    };
    Ok((program.id(), if is_there { interface } else { 0 }))
}

/// Takes the program off and removes the note.
pub(crate) fn remove(note: &Path) -> io::Result<()> {
    if let Some((namespace, interface)) = parts(note)
        && namespace == network_namespace()
        && let Some(interface) = interface_name(interface)
        && let Some(folder) = note.parent()
    {
        // Where somebody else has removed it, the note is all there is to remove.
        drop(link(&interface, handle(folder))?);
    }
    std::fs::remove_file(note)
}

fn parts(note: &Path) -> Option<(u64, u32)> {
    let name = note.file_name()?.to_str()?.strip_prefix(FILTER)?;
    let (namespace, interface) = name.split_once('-')?;
    Some((namespace.parse().ok()?, interface.parse().ok()?))
}

/// True while a thread is in the network namespace, a process has a file of it open, or it has a
/// name as `ip netns` gives it.
fn is_alive(namespace: u64) -> bool {
    let name = PathBuf::from(format!("net:[{namespace}]"));
    let is_named = |file: PathBuf| std::fs::metadata(file).is_ok_and(|it| it.ino() == namespace);
    let leads_to_it = |file: PathBuf| std::fs::read_link(file).is_ok_and(|to| to == name);
    let entries = |folder: PathBuf| {
        let listed = std::fs::read_dir(folder).into_iter().flatten().flatten();
        listed.map(|entry| entry.path())
    };
    let has_it = |process: PathBuf| {
        entries(process.join("task")).any(|thread| leads_to_it(thread.join("ns/net")))
            || entries(process.join("fd")).any(leads_to_it)
    };
    entries("/run/netns".into()).any(is_named) || entries("/proc".into()).any(has_it)
}
