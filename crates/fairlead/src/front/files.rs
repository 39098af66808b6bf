//! The files of caches: bodies and journal of each, on a file system that is memory, so that what
//! is stored outlives the process.
//!
//! `NAME.NAMESPACE.cache-IDENTITY.blocks` and `….journal` beside the control socket, or in
//! `/dev/shm` where that is no tmpfs. The identity stands for everything that decides what a cache
//! may hold: service, route, pool and network namespace. Files of other identities are removed.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use fairlead_base::{Instant, Seed};
use fairlead_http_cache::{Extent, Journal, Settings};
use fairlead_http_front::{Backing, Front, Owner};
use fairlead_os_memory::{BlockFile, BlockSender, free_memory_at};

use crate::control;

/// Where files lie if the folder of control sockets is on a disk.
const OTHER_FOLDER: &str = "/dev/shm/fairlead";

/// The files of all caches.
#[derive(Debug, Default)]
pub(super) struct Files {
    of: Vec<Option<CacheFile>>,
}

#[derive(Debug)]
struct CacheFile {
    sender: BlockSender,
    /// Its folder, and its name without ending; `None` where nothing outlives the process.
    place: Option<(PathBuf, String)>,
    journal: Option<File>,
}

impl Files {
    /// Puts the caches of a front into files, and takes back what an earlier process left there.
    pub(super) fn open(instance: &str, front: &mut Front, now: Instant) -> Self {
        let prefix = prefix_of(instance).ok();
        let mut of = Vec::new();
        front.back_caches(now, |owner, settings| {
            let name = prefix.as_deref().map(|prefix| name_of(prefix, owner));
            match open(name.as_deref(), settings) {
                Ok((file, backing)) => {
                    of.push(Some(file));
                    Some(backing)
                }
                Err(error) => {
                    tracing::warn!("a cache has no file, so its bodies are copied: {error}");
                    of.push(None);
                    None
                }
            }
        });
        let this = Self { of };
        this.remove_strangers(prefix.as_deref());
        for view in front.caches() {
            let (restored, dropped) = (view.stats.restored, view.stats.not_restored);
            if restored + dropped > 0 {
                tracing::info!(restored, dropped, "stored responses of the run before");
            }
        }
        this
    }

    /// Sends a part of a cache's file.
    pub(super) fn send(
        &self,
        cache: usize,
        to: std::os::fd::BorrowedFd<'_>,
        part: Extent,
    ) -> io::Result<usize> {
        match self.of.get(cache) {
            Some(Some(file)) => file.sender.send(to, part),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Writes what is new to the journals.
    pub(super) fn write(&mut self, front: &mut Front) {
        for (number, file) in self.of.iter_mut().enumerate() {
            let Some(file) = file.as_mut().filter(|file| file.place.is_some()) else {
                continue;
            };
            let journal = front.poll_journal(number);
            if let Err(error) = file.write(&journal) {
                // What is written already may say the contrary of what could not be.
                tracing::warn!("a cache will not outlive this process: {error}");
                file.forget();
            }
        }
    }

    /// Removes all files: nothing outlives this process.
    pub(super) fn remove(&mut self) {
        self.of.iter_mut().flatten().for_each(CacheFile::forget);
    }

    fn remove_strangers(&self, prefix: Option<&str>) {
        let ours: Vec<_> = self
            .of
            .iter()
            .flatten()
            .filter_map(|file| file.place.as_ref())
            .collect();
        let Some(prefix) = prefix else { return };
        for path in found(prefix) {
            let is_ours = ours.iter().any(|(folder, name)| {
                path.parent() == Some(folder)
                    && path.file_stem().is_some_and(|stem| stem == &**name)
            });
            if !is_ours {
                let _ = std::fs::remove_file(path); // it is tried again by the next start
            }
        }
    }
}

impl CacheFile {
    fn write(&mut self, journal: &Journal) -> io::Result<()> {
        let Some((folder, name)) = &self.place else {
            return Ok(());
        };
        match (journal, &mut self.journal) {
            (Journal::Nothing, _) => Ok(()),
            (Journal::Append(bytes), Some(file)) => file.write_all(bytes),
            (Journal::Append(_), None) => Err(io::ErrorKind::NotFound.into()),
            (Journal::Replace(bytes), _) => {
                let (path, new) = (journal_in(folder, name), folder.join(format!("{name}.new")));
                let _ = std::fs::remove_file(&new);
                let mut options = OpenOptions::new();
                let mut file = options
                    .append(true)
                    .create_new(true)
                    .mode(0o600)
                    .open(&new)?;
                file.write_all(bytes)?;
                std::fs::rename(&new, &path)?;
                self.journal = Some(file);
                Ok(())
            }
        }
    }

    fn forget(&mut self) {
        self.journal = None;
        if let Some((folder, name)) = self.place.take() {
            for path in [journal_in(&folder, &name), blocks_in(&folder, &name)] {
                let _ = std::fs::remove_file(path); // the next start finds no journal, or drops it
            }
        }
    }
}

/// Removes the files of an instance that runs no more; what was removed.
///
/// # Errors
/// The network namespace is not known.
pub(crate) fn remove_of(instance: &str) -> io::Result<Vec<PathBuf>> {
    let all = found(&prefix_of(instance)?);
    Ok(all
        .into_iter()
        .filter(|path| std::fs::remove_file(path).is_ok())
        .collect())
}

/// What names of an instance's files begin with.
fn prefix_of(instance: &str) -> io::Result<String> {
    let socket = control::socket_of(instance)?;
    let stem = socket.file_stem().unwrap_or_default().to_string_lossy();
    Ok(format!("{stem}.cache-"))
}

/// All files of an instance.
fn found(prefix: &str) -> Vec<PathBuf> {
    let folders = [control::FOLDER, OTHER_FOLDER].map(std::fs::read_dir);
    let entries = folders.into_iter().flatten().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let is_of = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(prefix)
    };
    paths.filter(is_of).collect()
}

/// The same for the same service, route and pool, in the same network namespace until the machine
/// restarts.
fn name_of(prefix: &str, owner: Owner<'_>) -> String {
    let cookie = fairlead_survey::namespace_cookie().unwrap_or(0);
    let (service, pool) = (&owner.service.name, owner.pool.map(|pool| &pool.name));
    let text = format!("{service:?} {pool:?} {:?}", owner.route.matchers);
    let identity = Seed::new([cookie, 0]).word(&text, 0);
    format!("{prefix}{identity:016x}")
}

fn blocks_in(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.blocks"))
}

fn journal_in(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.journal"))
}

/// Opens the file of a cache. Where no folder is memory with enough room, it is one without a name.
fn open(name: Option<&str>, settings: &Settings) -> io::Result<(CacheFile, Backing)> {
    if let Some(name) = name {
        match folder_for(name, settings.bytes).and_then(|folder| open_in(folder, name, settings)) {
            Ok(opened) => return Ok(opened),
            Err(error) => tracing::warn!("a cache will not outlive this process: {error}"),
        }
    }
    let store = BlockFile::in_memory(settings.block, settings.lines())?;
    let file = CacheFile {
        sender: store.sender()?,
        place: None,
        journal: None,
    };
    Ok((file, Backing::new(store, None)))
}

fn open_in(folder: PathBuf, name: &str, settings: &Settings) -> io::Result<(CacheFile, Backing)> {
    let blocks = blocks_in(&folder, name);
    let (store, was_there) = BlockFile::open(&blocks, settings.block, settings.lines())?;
    let journal = match was_there {
        true => std::fs::read(journal_in(&folder, name)).unwrap_or_default(),
        false => Vec::new(),
    };
    let file = CacheFile {
        sender: store.sender()?,
        place: Some((folder, name.to_owned())),
        journal: None,
    };
    Ok((file, Backing::new(store, Some(journal))))
}

/// A folder that is memory, is of this user alone, and has room.
fn folder_for(name: &str, bytes: u64) -> io::Result<PathBuf> {
    let mut why = io::Error::other("there is no tmpfs");
    for folder in [control::FOLDER, OTHER_FOLDER].map(Path::new) {
        match check(folder, name, bytes) {
            Ok(()) => return Ok(folder.to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => why = error,
        }
    }
    Err(why)
}

fn check(folder: &Path, name: &str, bytes: u64) -> io::Result<()> {
    let parent = folder.parent().unwrap_or(folder);
    if free_memory_at(parent)?.is_none() && free_memory_at(folder).ok().flatten().is_none() {
        return Err(io::ErrorKind::NotFound.into());
    }
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let shown = folder.display();
    let found = std::fs::symlink_metadata(folder)?;
    let we = std::fs::metadata("/proc/self")?.uid();
    if !found.is_dir() || found.uid() != we || found.mode() & 0o022 != 0 {
        let what = format!("{shown} is no folder that only this user can write to");
        return Err(io::Error::other(what));
    }
    let own = std::fs::metadata(blocks_in(folder, name)).map_or(0, |found| found.blocks() * 512);
    let free = free_memory_at(folder)?.ok_or(io::ErrorKind::NotFound)?;
    if free + own < bytes {
        let what = format!(
            "{shown} has {} MiB free, and the cache may take {}",
            free >> 20,
            bytes >> 20
        );
        return Err(io::Error::other(what));
    }
    Ok(())
}
