//! The web server's files, and its configuration.

use std::fs;
use std::path::{Path, PathBuf};

use super::mix::Document;
use crate::error::LabError;

/// Where the web server keeps what belongs to one measurement.
#[derive(Clone, Debug)]
pub(in super::super) struct Site {
    folder: PathBuf,
}

impl Site {
    /// Writes all files below this folder, 70 MB.
    pub(in super::super) fn write(folder: &Path) -> Result<Self, LabError> {
        let site = Self {
            folder: folder.to_owned(),
        };
        let root = site.root();
        for document in Document::all() {
            let path = root.join(&document.path()[1..]);
            let parent = path.parent().unwrap_or(&root);
            let made = fs::create_dir_all(parent);
            let written =
                made.and_then(|()| fs::write(&path, vec![b's'; document.bytes() as usize]));
            written.map_err(|error| LabError::file(&path, error))?;
        }
        let file = site.configuration();
        fs::write(&file, site.text()).map_err(|error| LabError::file(&file, error))?;
        Ok(site)
    }

    fn root(&self) -> PathBuf {
        self.folder.join("www")
    }

    pub(in super::super) fn configuration(&self) -> PathBuf {
        self.folder.join("nginx.conf")
    }

    /// Where the server writes its number once it listens.
    pub(in super::super) fn pid(&self) -> PathBuf {
        self.folder.join("nginx.pid")
    }

    pub(in super::super) fn log(&self) -> PathBuf {
        self.folder.join("nginx.log")
    }

    /// Where dynamic answers come from.
    pub(in super::super) fn backend(&self) -> PathBuf {
        self.folder.join("backend")
    }

    /// One process, so that one processor and one table of files have all connections. Dynamic
    /// answers fit into memory.
    fn text(&self) -> String {
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let temporary = temporary.map(|kind| {
            let folder = self.folder.join(kind);
            format!("  {kind}_temp_path {};\n", folder.display())
        });
        format!(
            "daemon off;\nmaster_process off;\nuser root;\npid {};\nerror_log {};\n\
             worker_rlimit_nofile 8192;\nevents {{ worker_connections 8000; }}\nhttp {{\n  \
             access_log off;\n  sendfile on;\n  tcp_nopush on;\n  keepalive_requests 1000;\n  \
             open_file_cache max=1000 inactive=1h;\n  open_file_cache_valid 1h;\n  \
             proxy_buffers 8 128k;\n  proxy_max_temp_file_size 0;\n{}  server {{\n    \
             listen 80 backlog=4096;\n    root {};\n    \
             location /dynamic/ {{ proxy_pass http://unix:{}; }}\n  }}\n}}\n",
            self.pid().display(),
            self.log().display(),
            temporary.concat(),
            self.root().display(),
            self.backend().display(),
        )
    }
}
