//! The sending half of the paper's microbenchmark: connections that ask first, then messages of one
//! segment. The program whose messages are traced has it, too, so it needs nothing but the standard
//! library.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// Bytes of a message: what one segment of Ethernet carries beside TCP's timestamps.
pub(crate) const MESSAGE_BYTES: usize = 1_448;
/// Requests that each connection begins with. A card has it after the second one.
pub(crate) const REQUESTS: usize = 3;
/// Longest wait for the other end.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))
}

/// Sends one message, from memory or, if there is one, by naming the beginning of a file
/// (`sendfile`).
pub(crate) fn send_one(mut stream: &TcpStream, file: Option<&File>) -> io::Result<()> {
    let Some(mut file) = file else {
        return stream.write_all(&[7; MESSAGE_BYTES]);
    };
    file.rewind()?;
    io::copy(&mut file.take(MESSAGE_BYTES as u64), &mut stream).map(drop)
}

/// Accepts this number of connections and answers their requests, until their reader waits for the
/// stream of messages.
pub(crate) fn accept(
    listener: &TcpListener,
    connections: usize,
    file: Option<&File>,
) -> io::Result<Vec<TcpStream>> {
    let mut streams = Vec::with_capacity(connections);
    for _ in 0..connections {
        let (stream, _) = listener.accept()?;
        prepare(&stream)?;
        streams.push(stream);
    }
    for _ in 0..REQUESTS {
        for mut stream in &streams {
            stream.read_exact(&mut [0])?;
            send_one(stream, file)?;
        }
    }
    for mut stream in &streams {
        stream.read_exact(&mut [0])?;
    }
    Ok(streams)
}
