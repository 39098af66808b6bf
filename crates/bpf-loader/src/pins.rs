//! The folder of the BPF file system in which an instance's maps and links outlive it.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::attach::Mode;
use crate::{addresses, filter, sys};

/// Where the BPF file system is.
pub(crate) const ROOT: &str = "/sys/fs/bpf";
/// The folder there around those of all instances.
const ALL: &str = "fairlead";

/// Mounts the BPF file system where it is missing; true if it was.
pub(crate) fn mount() -> io::Result<bool> {
    let is_missing = !sys::is_bpffs(Path::new(ROOT))?;
    if is_missing {
        sys::mount_bpffs(Path::new(ROOT))?;
    }
    Ok(is_missing)
}

/// Why nothing can be pinned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinsError {
    /// There is no BPF file system, and none can be mounted.
    #[error(
        "no BPF file system is mounted at {ROOT}, and mounting it failed ({0}); run `mount -t bpf \
         bpf {ROOT}` on the host, and make that directory available in containers"
    )]
    NoFileSystem(io::Error),
    /// The instance's folder cannot be made or read.
    #[error("{path}: {cause}")]
    Folder {
        /// Which folder.
        path: PathBuf,
        /// What the kernel said.
        cause: io::Error,
    },
    /// Another process has it.
    #[error("another process is running the instance \"{0}\"; choose another `name` in [instance]")]
    InUse(String),
}

/// An instance's folder, locked for as long as this lives.
#[derive(Debug)]
pub struct Pins {
    folder: PathBuf,
    /// True when this process had to mount the file system.
    mounted: bool,
    /// None where it is only looked at.
    _lock: Option<File>,
}

/// What was removed by [`Pins::clear`], in words, a line each.
pub type Removed = Vec<String>;

impl Pins {
    /// The folder of `instance`, made where it is missing, as is the file system.
    ///
    /// # Errors
    /// See [`PinsError`].
    pub fn open(instance: &str) -> Result<Self, PinsError> {
        let mounted = mount().map_err(PinsError::NoFileSystem)?;
        let folder = folder_of(instance);
        let failed = |cause| PinsError::Folder {
            path: folder.clone(),
            cause,
        };
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(&folder).map_err(failed)?;
        Self::lock(instance, folder, mounted)
    }

    /// The folder of `instance` if it has left one; nothing is made.
    ///
    /// # Errors
    /// See [`PinsError`].
    pub fn existing(instance: &str) -> Result<Option<Self>, PinsError> {
        let folder = folder_of(instance);
        if !sys::is_bpffs(Path::new(ROOT)).unwrap_or(false) {
            return Ok(None);
        }
        match fs::metadata(&folder) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            // Whether there is one cannot be seen.
            Err(cause) => {
                return Err(PinsError::Folder {
                    path: folder,
                    cause,
                });
            }
        }
        Self::lock(instance, folder, false).map(Some)
    }

    fn lock(instance: &str, folder: PathBuf, mounted: bool) -> Result<Self, PinsError> {
        let failed = |cause| PinsError::Folder {
            path: folder.clone(),
            cause,
        };
        let lock = File::open(&folder).map_err(failed)?;
        if !sys::try_lock(&lock).map_err(failed)? {
            return Err(PinsError::InUse(instance.to_owned()));
        }
        Ok(Self {
            folder,
            mounted,
            _lock: Some(lock),
        })
    }

    /// The folder of `instance`, to look at while whoever has it goes on; `None` when there is
    /// none.
    pub fn seen_from_outside(instance: &str) -> Option<Self> {
        let folder = folder_of(instance);
        folder.is_dir().then_some(Self {
            folder,
            mounted: false,
            _lock: None,
        })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// True when what is pinned ends with a mount namespace that is not the machine's first: this
    /// process has mounted the file system, and there.
    pub fn is_private(&self) -> bool {
        let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt"));
        self.mounted && namespace("self").ok() != namespace("1").ok()
    }

    /// The name of the instance, as its folder has it.
    pub(crate) fn instance(&self) -> Option<String> {
        let name = self.folder.file_name()?.to_str()?;
        Some(name.to_owned())
    }

    pub(crate) fn map(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Where the link to an interface lies, or the note of what is there instead of one.
    pub(crate) fn link(&self, mode: Mode, interface: u32) -> PathBuf {
        if mode == Mode::Tc && !filter::has_links() {
            return filter::note(&self.folder, interface);
        }
        self.folder
            .join(format!("{LINK}{}-{interface}", mode.name()))
    }

    /// Where the link to an interface lies by which sockets of this machine are served there, for
    /// what arrives or what leaves.
    pub(crate) fn host_link(&self, interface: u32, leaves: bool) -> PathBuf {
        let way = if leaves { "out-" } else { "" };
        self.folder.join(format!("{HOST}{way}{interface}"))
    }

    /// All of these, each with its interface.
    pub(crate) fn host_links(&self) -> Vec<(PathBuf, u32)> {
        let number = |path: PathBuf| {
            let name = path.file_name()?.to_str()?.strip_prefix(HOST)?;
            let index = name.strip_prefix("out-").unwrap_or(name).parse().ok()?;
            Some((path, index))
        };
        self.files().into_iter().filter_map(number).collect()
    }

    /// Where a link lies of the gate of handed-off connections; several runs' lie side by side for
    /// a moment.
    pub(crate) fn gate(&self, which: u32, interface: u32, process: u32, serial: u32) -> PathBuf {
        let name = format!("{GATE}{which}-{interface}-{process}-{serial}");
        self.folder.join(name)
    }

    /// All of these.
    pub(crate) fn gates(&self) -> Vec<PathBuf> {
        let is_gate = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with(GATE))
        };
        self.files().into_iter().filter(is_gate).collect()
    }

    /// All links that are pinned, and notes.
    pub(crate) fn links(&self) -> Vec<PathBuf> {
        let is_link = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with(LINK) || name.starts_with(filter::FILTER))
        };
        self.files().into_iter().filter(is_link).collect()
    }

    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        files.sort();
        files
    }

    /// The interfaces, by index, that a program serves by links that are pinned here: those where
    /// it is, or VLANs on them.
    pub fn interfaces(&self) -> Vec<u32> {
        let links = self.links().into_iter();
        let (xdp, others): (Vec<_>, Vec<_>) = links.partition(|link| is_xdp(link));
        let told = match xdp.is_empty() {
            true => Vec::new(),
            false => addresses::told(self),
        };
        let looked_at = if told.is_empty() { &xdp } else { &Vec::new() };
        let looked_at = others.iter().chain(looked_at);
        let indices = looked_at.filter_map(|link| Some(at(link).ok()?.1));
        let there = indices.filter(|index| *index != 0);
        told.iter().copied().chain(there).collect()
    }

    /// True when this program, by the kernel's number, is at the interface by a link that is pinned
    /// here.
    pub fn has_program(&self, interface: u32, program: u32) -> bool {
        let mut links = self.links().into_iter();
        links.any(|link| at(&link).is_ok_and(|there| there == (program, interface)))
    }

    /// True when a link leads to an interface that there still is.
    pub(crate) fn is_attached(&self) -> bool {
        let mut links = self.links().into_iter();
        links.any(|link| at(&link).is_ok_and(|(_, interface)| interface != 0))
    }

    /// Removes what is pinned, links first: with the last of them the program leaves its
    /// interface.
    pub(crate) fn forget(&self) -> io::Result<Removed> {
        let mut removed = Removed::new();
        let links = self.links();
        let maps = self.files().into_iter().filter(|one| !links.contains(one));
        for path in links.iter().cloned().chain(maps) {
            match links.contains(&path) {
                true => remove(&path)?,
                false => fs::remove_file(&path)?,
            }
            removed.push(path.display().to_string());
        }
        Ok(removed)
    }

    /// Removes what is pinned, and the folder; the one around it, too, when no other instance has
    /// anything there.
    ///
    /// # Errors
    /// When something stays.
    pub fn clear(&self) -> io::Result<Removed> {
        let mut removed = self.forget()?;
        self.remove_folder()?;
        removed.push(self.folder.display().to_string());
        Ok(removed)
    }

    /// Removes the folder if nothing is pinned in it, as one that was made for nothing.
    pub fn remove_if_empty(&self) {
        let _ = self.remove_folder(); // which the kernel refuses for any other
    }

    fn remove_folder(&self) -> io::Result<()> {
        fs::remove_dir(&self.folder)?;
        if let Some(all) = self.folder.parent() {
            let _ = fs::remove_dir(all); // stays while other instances have something there
        }
        Ok(())
    }
}

/// True when this program, by the kernel's number, is at the interface by a link that any instance
/// has pinned.
pub fn is_pinned(interface: u32, program: u32) -> bool {
    let instances = fs::read_dir(Path::new(ROOT).join(ALL))
        .into_iter()
        .flatten();
    let mut instances = instances.flatten().map(|entry| Pins {
        folder: entry.path(),
        mounted: false,
        _lock: None,
    });
    instances.any(|pins| pins.has_program(interface, program))
}

const LINK: &str = "link-";
const HOST: &str = "host-";
const GATE: &str = "gate-";

fn is_xdp(link: &Path) -> bool {
    let name = link.file_name().and_then(|name| name.to_str());
    let rest = name.and_then(|name| name.strip_prefix(LINK));
    rest.is_some_and(|rest| rest.starts_with("xdp"))
}

fn is_note(link: &Path) -> bool {
    let name = link.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with(filter::FILTER))
}

/// The program of a link or a note, by the kernel's number, and the interface's index (0 once that
/// is gone).
pub(crate) fn at(link: &Path) -> io::Result<(u32, u32)> {
    match is_note(link) {
        true => filter::at(link),
        false => sys::link_at(link),
    }
}

/// Takes the program of a link or a note off its interface and removes the file.
pub(crate) fn remove(link: &Path) -> io::Result<()> {
    match is_note(link) {
        true => filter::remove(link),
        false => sys::remove_link(link),
    }
}

/// The names of files there have no dots.
pub(crate) fn folder_of(instance: &str) -> PathBuf {
    Path::new(ROOT).join(ALL).join(instance.replace('.', ":"))
}

/// The network namespace of the calling thread, by the inode of its file; 0 when it is not known.
pub(crate) fn network_namespace() -> u64 {
    fs::metadata("/proc/thread-self/ns/net").map_or(0, |file| file.ino())
}
