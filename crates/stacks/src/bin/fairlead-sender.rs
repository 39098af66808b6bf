//! A program whose messages are traced: `fairlead-sender ADDRESS CONNECTIONS MESSAGES [FILE]`.
//!
//! It accepts connections, answers three requests of each, and sends messages of one segment over
//! them in turn, from memory or by naming the beginning of a file. It is linked dynamically: with
//! the bypass library, what the library does for a message is in the trace (`lab handoff paper`).

#[path = "../../../../tracer/fairlead_packet.rs"]
mod fairlead_packet;
#[path = "../../../lab/src/handoff/message.rs"]
mod message;

use std::error::Error;
use std::fs::File;
use std::net::TcpListener;

fairlead_packet::names!(b"message");

const MESSAGE: u8 = 0;

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
    let streams = message::accept(&listener, connections, file.as_ref())?;
    for stream in streams.iter().cycle().take(messages) {
        fairlead_packet::begin(MESSAGE);
        let sent = message::send_one(stream, file.as_ref());
        fairlead_packet::end(MESSAGE);
        sent?;
    }
    Ok(())
}
