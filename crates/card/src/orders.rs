//! Orders of the operator: at a Unix socket, one line in, one JSON document out.

use std::fs::{DirBuilder, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use mio::Waker;
use serde_json::{Value, json};

/// Where the sockets of all cards of this machine are.
const FOLDER: &str = "/run/fairlead";
/// The longest line.
const LINE_BYTES: u64 = 64;
/// How long a client has for its line, and to read the answer; and the card to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Clients at once. One more is not answered.
const CLIENTS: usize = 4;

/// What the operator wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// A list of the connections, and what was counted.
    List,
    /// This connection, or all, go back to their programs.
    Give(Option<u32>),
    /// What was given back may be handed off again.
    Take,
}

impl Order {
    /// The line.
    pub fn line(self) -> String {
        match self {
            Self::List => "list\n".to_owned(),
            Self::Give(None) => "give all\n".to_owned(),
            Self::Give(Some(number)) => format!("give {number}\n"),
            Self::Take => "take\n".to_owned(),
        }
    }

    /// What a line says; `None`: nothing.
    pub fn parse(line: &str) -> Option<Self> {
        match line.strip_suffix('\n')? {
            "list" => Some(Self::List),
            "take" => Some(Self::Take),
            other => match other.strip_prefix("give ")? {
                "all" => Some(Self::Give(None)),
                number => number.parse().ok().map(|number| Self::Give(Some(number))),
            },
        }
    }
}

/// Where the card of this name takes orders.
pub fn orders_at(card: &str) -> PathBuf {
    Path::new(FOLDER).join(format!("{card}.card"))
}

/// Gives a card an order; its answer.
///
/// # Errors
/// No such card serves, or the reason for a refusal.
pub fn ask(socket: &Path, order: Order) -> Result<Value, String> {
    let answer = || -> io::Result<Value> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(2 * PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(order.line().as_bytes())?;
        Ok(serde_json::from_reader(stream)?)
    };
    let answer = answer().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            format!("no card serves at {}", socket.display())
        }
        _ => format!("{}: {error}", socket.display()),
    })?;
    match answer["refused"].as_str() {
        Some(why) => Err(why.to_owned()),
        None => Ok(answer),
    }
}

/// An order, and where its answer goes.
pub(crate) struct Pending {
    pub(crate) order: Order,
    answer: Sender<Value>,
}

impl Pending {
    pub(crate) fn answer(self, document: Value) {
        // The client may have gone.
        let _ = self.answer.send(document);
    }
}

/// The socket, and orders that have come.
pub(crate) struct Orders {
    path: PathBuf,
    listener: UnixListener,
    waker: Arc<Waker>,
    sender: Sender<Pending>,
    receiver: Receiver<Pending>,
    /// A copy for each client that is being served.
    places: Arc<()>,
}

impl Drop for Orders {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Orders {
    /// `waker` is called for each order.
    pub(crate) fn listen(path: &Path, waker: Waker) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)?;
        }
        if UnixStream::connect(path).is_ok() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        // Nobody may connect before the mode is right.
        let fresh = path.with_added_extension("new");
        for old in [path, &fresh] {
            let _ = std::fs::remove_file(old);
        }
        let listener = UnixListener::bind(&fresh)?;
        std::fs::set_permissions(&fresh, Permissions::from_mode(0o600))?;
        std::fs::rename(&fresh, path)?;
        listener.set_nonblocking(true)?;
        let (sender, receiver) = channel();
        Ok(Self {
            path: path.to_owned(),
            listener,
            waker: Arc::new(waker),
            sender,
            receiver,
            places: Arc::default(),
        })
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Serves clients that have connected, on threads of their own.
    pub(crate) fn accept(&self) {
        while let Ok((stream, _)) = self.listener.accept() {
            let place = Arc::clone(&self.places);
            if Arc::strong_count(&place) > CLIENTS + 1 {
                continue; // closed
            }
            let (sender, waker) = (self.sender.clone(), Arc::clone(&self.waker));
            // It ends within a few seconds.
            let thread = std::thread::Builder::new().name("orders".to_owned());
            let _ = thread.spawn(move || {
                let _ = serve(stream, &sender, &waker);
                drop(place);
            });
        }
    }

    /// The next order.
    pub(crate) fn next(&self) -> Option<Pending> {
        self.receiver.try_recv().ok()
    }
}

fn serve(stream: UnixStream, sender: &Sender<Pending>, waker: &Waker) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new((&stream).take(LINE_BYTES)).read_line(&mut line)?;
    let document = match Order::parse(&line) {
        None => json!({"refused": "unknown order; expected list, give or take"}),
        Some(order) => {
            let (answer, answered) = channel();
            let _ = sender.send(Pending { order, answer });
            waker.wake()?;
            let late = json!({"refused": "the card does not answer"});
            answered.recv_timeout(PATIENCE).unwrap_or(late)
        }
    };
    (&stream).write_all(document.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_what_their_lines_say() {
        let all = [
            Order::List,
            Order::Give(None),
            Order::Give(Some(7)),
            Order::Take,
        ];
        for order in all {
            assert_eq!(Order::parse(&order.line()), Some(order));
        }
        for line in [
            "",
            "\n",
            "list",
            "give\n",
            "give x\n",
            "give -1\n",
            "lists\n",
        ] {
            assert_eq!(Order::parse(line), None, "{line:?}");
        }
    }
}
