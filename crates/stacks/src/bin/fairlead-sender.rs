//! A program whose messages are traced: `fairlead-sender ADDRESS CONNECTIONS MESSAGES [FILE]`.
//!
//! It accepts connections, answers three requests of each, and sends messages of one segment over
//! them in turn, from memory or by naming the beginning of a file. It is linked dynamically: with
//! the bypass library, what the library does for a message is in the trace (`lab handoff paper`).

#[path = "../../../../tracer/fairlead_packet.rs"]
mod fairlead_packet;

use std::error::Error;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::net::{TcpListener, TcpStream};

fairlead_packet::names!(b"message");

/// As the load of `lab handoff`.
const MESSAGE_BYTES: usize = 1_448;
const REQUESTS: usize = 3;
const MESSAGE: u8 = 0;

fn send(mut stream: &TcpStream, file: Option<&File>) -> io::Result<()> {
    let Some(mut file) = file else {
        return stream.write_all(&[7; MESSAGE_BYTES]);
    };
    file.rewind()?;
    io::copy(&mut file.take(MESSAGE_BYTES as u64), &mut stream).map(drop)
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (address, connections, messages, file) = match &words[..] {
        [address, connections, messages] => (address, connections, messages, None),
        [address, connections, messages, file] => (address, connections, messages, Some(file)),
        _ => return Err("usage: fairlead-sender ADDRESS CONNECTIONS MESSAGES [FILE]".into()),
    };
    let connections: usize = connections.parse()?;
    let messages: usize = messages.parse()?;
    let file = file.map(File::open).transpose()?;
    let listener = TcpListener::bind(address)?;
    println!("ready");
    let mut streams = Vec::new();
    for _ in 0..connections {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        streams.push(stream);
    }
    for _ in 0..REQUESTS {
        for mut stream in &streams {
            stream.read_exact(&mut [0])?;
            send(stream, file.as_ref())?;
        }
    }
    for mut stream in &streams {
        stream.read_exact(&mut [0])?;
    }
    for stream in streams.iter().cycle().take(messages) {
        fairlead_packet::begin(MESSAGE);
        let sent = send(stream, file.as_ref());
        fairlead_packet::end(MESSAGE);
        sent?;
    }
    Ok(())
}
