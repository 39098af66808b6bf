//! `fairlead content`: a process that works at an interface until it is ended.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::process::{ChildStderr, Stdio};

use fairlead_netns::{Host, Running, Signal};
use serde_json::Value;

use super::{PATIENCE, binary};

/// A running `fairlead content …`.
pub(crate) struct Content {
    process: Running,
    errors: BufReader<ChildStderr>,
}

impl Content {
    /// Starts it at an interface of a host, and waits until it is at work.
    pub(crate) fn start<S: AsRef<OsStr>>(
        host: &Host,
        what: &str,
        interface: &str,
        more: impl IntoIterator<Item = S>,
    ) -> Self {
        let mut command = host.command(&binary().to_string_lossy());
        command
            .args(["content", what, "--json", "--interface", interface])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = host.start(&mut command).expect("starting it");
        let errors = process.child().stderr.take().expect("a pipe");
        let mut errors = BufReader::new(errors);
        let mut line = String::new();
        errors.read_line(&mut line).expect("its first line");
        let verbs = ["measuring", "referring", "resolving"];
        assert!(verbs.iter().any(|verb| line.starts_with(verb)), "{line}");
        Self { process, errors }
    }

    /// Ends it as Ctrl-C does; its document.
    pub(crate) fn end(mut self) -> Value {
        self.process.signal(Signal::Interrupt).expect("Ctrl-C");
        let status = self.process.wait_for(PATIENCE).expect("its end");
        let mut said = String::new();
        let _ = self.errors.read_to_string(&mut said);
        assert!(status.is_some_and(|status| status.success()), "{said}");
        let mut out = String::new();
        let pipe = self.process.child().stdout.as_mut().expect("a pipe");
        pipe.read_to_string(&mut out).expect("text");
        serde_json::from_str(&out).expect("JSON")
    }

    /// Ends it by SIGKILL.
    pub(crate) fn kill(mut self) {
        self.process.signal(Signal::Kill).expect("SIGKILL");
        self.process.wait_for(PATIENCE).expect("its end");
    }
}
