//! Connections that stay open: each has asked once, and may be asked again.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::process::{ChildStdout, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_netns::Running;
use socket2::{Domain, Protocol, Socket, Type};

use crate::testbed::Testbed;

const REQUEST: &[u8] = b"GET /1KiB HTTP/1.1\r\nHost: bench.example\r\n\r\n";
const PATIENCE: Duration = Duration::from_secs(5);

/// One request, and its answer to the last byte.
fn ask(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(REQUEST)?;
    let mut answer = Vec::with_capacity(2_048);
    let mut part = [0; 4_096];
    loop {
        let read = stream.read(&mut part)?;
        ensure!(read > 0, "the connection was closed");
        answer.extend_from_slice(&part[..read]);
        if let Some(at) = answer.windows(4).position(|four| four == b"\r\n\r\n")
            && answer.len() >= at + 4 + 1_024
        {
            ensure!(answer.starts_with(b"HTTP/1.1 200"), "not a 200");
            return Ok(());
        }
        ensure!(answer.len() < 8_192, "an answer without an end");
    }
}

/// A connection of its own for one request.
pub(crate) fn one_off(address: &str) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&address.parse()?, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    ask(&mut stream)?;
    // Reset, so that thousands a second do not use up the ports.
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    Ok(())
}

/// Parameters of a holding process. It runs in the client's network.
#[derive(Debug, clap::Args)]
pub(crate) struct Hold {
    /// Whom to connect to.
    #[arg(long)]
    to: SocketAddr,
    /// From which of the client's addresses: the last byte.
    #[arg(long)]
    from: u8,
    /// How many connections.
    #[arg(long)]
    count: u32,
}

fn open_one(hold: &Hold) -> Result<TcpStream> {
    let from = SocketAddrV4::new([10, 1, 0, hold.from].into(), 0);
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.bind(&SocketAddr::V4(from).into())?;
    // Closed by a reset, so that nobody keeps them in TIME_WAIT.
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_tcp_nodelay(true)?;
    socket.connect_timeout(&hold.to.into(), PATIENCE)?;
    let mut stream = TcpStream::from(socket);
    ask(&mut stream)?;
    Ok(stream)
}

/// Opens its connections, each answered once, and says `0`; for every line that comes then, asks on
/// each of them once more and says how many did not answer in all. Ends with its input.
pub(crate) fn hold(hold: &Hold) -> Result<()> {
    fairlead_netns::raise_open_files(1 << 20)?;
    let mut streams = (0..hold.count)
        .map(|number| open_one(hold).with_context(|| format!("connection {number}")))
        .collect::<Result<Vec<_>>>()?;
    println!("0");
    for line in std::io::stdin().lines() {
        line?;
        streams.retain_mut(|stream| ask(stream).is_ok());
        println!("{}", hold.count as usize - streams.len());
    }
    Ok(())
}

/// Open connections of the client, in processes of their own: one may not have files for all.
pub(crate) struct Held {
    holders: Vec<Holder>,
}

struct Holder {
    process: Running,
    answers: BufReader<ChildStdout>,
}

impl Holder {
    fn answer(&mut self) -> Result<usize> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let number = line.trim().parse();
        number.with_context(|| format!("a holding process ended; it said {line:?}"))
    }
}

impl Held {
    /// Opens `count` connections to `address`, and has each of them answered once.
    pub(crate) fn open(testbed: &Testbed, address: &str, count: u32) -> Result<Self> {
        let most = testbed.connections_per_process();
        let own = std::env::current_exe()?.display().to_string();
        let mut holders = Vec::new();
        let mut left = count;
        for from in 10.. {
            if left == 0 {
                break;
            }
            let share = left.min(most);
            left -= share;
            let mut command = testbed.client.command(&own);
            command.args(["hold", "--to", address, "--from"]);
            command.args([from.to_string(), "--count".into(), share.to_string()]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut process = testbed.client.start(&mut command)?;
            let stdout = process.child().stdout.take();
            let answers = BufReader::new(stdout.context("a pipe was asked for")?);
            holders.push(Holder { process, answers });
        }
        let mut held = Self { holders };
        for holder in &mut held.holders {
            holder.answer()?;
        }
        Ok(held)
    }

    /// Asks on every connection once more; how many are lost by now, in all.
    pub(crate) fn lost(&mut self) -> Result<usize> {
        for holder in &mut self.holders {
            let stdin = holder.process.child().stdin.as_mut();
            writeln!(stdin.context("a pipe was asked for")?)?;
        }
        let lost = self.holders.iter_mut().map(Holder::answer);
        lost.sum()
    }
}
