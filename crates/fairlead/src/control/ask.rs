//! The control socket's other side: whoever gives an order.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::{Answer, FOLDER, Order, instances, socket_of};

/// How long an answer may take: longer than the switch may, which says why it is late.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);
/// The longest line of an answer that is read, bytes.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Why there is no answer, in words for who asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoAnswer(pub String);

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An order that was given; its answer comes in lines.
#[derive(Debug)]
pub struct Asked {
    lines: BufReader<UnixStream>,
    line: Vec<u8>,
}

/// Gives an order to the instance of this name in this network namespace.
///
/// # Errors
/// When it does not run here, or may not be asked by this user.
pub fn ask(instance: &str, order: Order) -> Result<Asked, NoAnswer> {
    let at = socket_of(instance).map_err(|error| NoAnswer(error.to_string()))?;
    ask_at(&at, order).map_err(|error| NoAnswer(explain(instance, &at, &error)))
}

pub(super) fn ask_at(path: &Path, order: Order) -> io::Result<Asked> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // Who is refused at once may find it closed; the reason can still be read.
    match stream.write_all(format!("{}\n", order.name()).as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
        _ => {}
    }
    Ok(Asked {
        lines: BufReader::new(stream),
        line: Vec::new(),
    })
}

fn explain(instance: &str, at: &Path, error: &io::Error) -> String {
    let at = at.display();
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            let mut running = instances();
            running.retain(|name| name != instance);
            let others = match running.is_empty() {
                true => String::new(),
                false => format!("; --instance takes: {}", running.join(", ")),
            };
            format!(
                "no instance \"{instance}\" takes orders in this network namespace (nobody \
                 listens at {at}){others}"
            )
        }
        io::ErrorKind::PermissionDenied => format!(
            "{at}: {error}; only the user who runs the instance and root may give it orders \
             (the folder is {FOLDER})"
        ),
        _ => format!("{at}: {error}"),
    }
}

impl Asked {
    /// How long [`Self::answer`] waits.
    pub fn set_patience(&mut self, patience: Duration) -> io::Result<()> {
        self.lines.get_ref().set_read_timeout(Some(patience))
    }

    /// The next line; none when there are no more. After an error for want of time
    /// ([`is_late`]) it may be asked for again.
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

/// Why there is no answer, after an error of [`Asked::answer`].
pub(crate) fn describe(error: &io::Error) -> String {
    match is_late(error) {
        true => {
            "no answer in time: the process is stopped, or too busy. It does not do what nobody \
                 waits for; `fairlead status` tells how it is"
                .to_owned()
        }
        false => format!("no answer: {error}"),
    }
}

/// True when a line did not come in time, and may come yet.
pub(crate) fn is_late(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}
