//! The control socket's client side.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::{Answer, FOLDER, Order, instances, socket_of};

/// How long to wait for an answer. Longer than the switch's own limit, so that its explanation
/// arrives.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);
/// The longest line of an answer that is read, bytes.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Why there is no answer, as a message for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoAnswer(pub String);

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An order that was sent. Its answer arrives as lines.
#[derive(Debug)]
pub struct Asked {
    lines: BufReader<UnixStream>,
    line: Vec<u8>,
}

/// Sends an order to the instance of this name in this network namespace.
///
/// # Errors
/// The instance is not running here, or this user may not control it.
pub fn ask(instance: &str, order: Order) -> Result<Asked, NoAnswer> {
    let at = socket_of(instance).map_err(|error| NoAnswer(error.to_string()))?;
    ask_at(&at, order).map_err(|error| NoAnswer(explain(instance, &at, &error)))
}

pub(super) fn ask_at(path: &Path, order: Order) -> io::Result<Asked> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // A refusing server may have closed the connection already; its reason can still be read.
    match stream.write_all(format!("{}\n", order.name()).as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
        _ => {}
    }
    Ok(Asked {
        lines: BufReader::new(stream),
        line: Vec::new(),
    })
}

pub(crate) fn explain(instance: &str, at: &Path, error: &io::Error) -> String {
    let at = at.display();
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            let mut running = instances();
            running.retain(|name| name != instance);
            let others = match running.is_empty() {
                true => String::new(),
                false => format!("; running instances: {}", running.join(", ")),
            };
            format!(
                "instance \"{instance}\" is not running in this network namespace (nothing listens \
                 at {at}){others}"
            )
        }
        io::ErrorKind::PermissionDenied => format!(
            "{at}: {error}; only root and the user running the instance may control it (sockets \
             are in {FOLDER})"
        ),
        _ => format!("{at}: {error}"),
    }
}

impl Asked {
    /// Sets how long [`Self::answer`] waits.
    pub fn set_patience(&mut self, patience: Duration) -> io::Result<()> {
        self.lines.get_ref().set_read_timeout(Some(patience))
    }

    /// The next line, or `None` after the last one. After a timeout ([`is_late`]) it may be called
    /// again.
    pub fn answer(&mut self) -> io::Result<Option<Answer>> {
        let room = LINE_BYTES_MAX.saturating_sub(self.line.len() as u64);
        (&mut self.lines)
            .take(room)
            .read_until(b'\n', &mut self.line)?;
        if !self.line.ends_with(b"\n") {
            return match self.line.is_empty() {
                true => Ok(None),
                false => Err(io::ErrorKind::UnexpectedEof.into()),
            };
        }
        let answer = serde_json::from_slice(&self.line)?;
        self.line.clear();
        Ok(Some(answer))
    }
}

/// Describes an error of [`Asked::answer`] to the user.
pub(crate) fn describe(error: &io::Error) -> String {
    match is_late(error) {
        true => "timed out: the process is suspended or overloaded. The order has been withdrawn; \
             `fairlead status` shows the state of the switch"
            .to_owned(),
        false => format!("no answer: {error}"),
    }
}

/// True if the read timed out, so that the line may still arrive.
pub(crate) fn is_late(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}
