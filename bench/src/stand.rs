//! Programs that a benchmark starts, with a folder for their files, and what they have used.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::Result;
use fairlead_netns::{Host, Running};

/// A folder and the programs that use it. Both go with it.
pub(crate) struct Stand {
    pub(crate) folder: PathBuf,
    processes: Vec<Running>,
}

impl Stand {
    /// A new folder below another one.
    pub(crate) fn new(parent: &Path, name: &str) -> Result<Self> {
        let folder = parent.join(format!("fairlead-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        Ok(Self {
            folder,
            processes: Vec::new(),
        })
    }

    /// Writes a file; its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<String> {
        let path = self.folder.join(name);
        fs::write(&path, text)?;
        Ok(path.display().to_string())
    }

    /// Starts a program; its process.
    pub(crate) fn spawn(&mut self, host: &Host, words: &[&str]) -> Result<u32> {
        let mut command = host.command(words[0]);
        command.args(&words[1..]).stdout(Stdio::null());
        let name = format!("{}.err", self.processes.len());
        command.stderr(Stdio::from(fs::File::create(self.folder.join(name))?));
        let process = host.start(&mut command)?;
        let id = process.id();
        self.processes.push(process);
        Ok(id)
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        self.processes.clear();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// User and system time of processes, seconds.
pub(crate) fn processor_seconds(ids: &[u32]) -> f64 {
    let of = |id: &u32| -> Option<f64> {
        let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        let mut words = text.rsplit_once(')')?.1.split_whitespace();
        let user: f64 = words.nth(11)?.parse().ok()?;
        let system: f64 = words.next()?.parse().ok()?;
        Some((user + system) / 100.0)
    };
    ids.iter().filter_map(of).sum()
}

/// What others do on this machine: the average of runnable processes in the last minute.
pub(crate) fn load_before() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("?").to_owned()
}
