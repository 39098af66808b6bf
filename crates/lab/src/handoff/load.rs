//! The paper's microbenchmark: one end sends messages of one segment over many connections in turn,
//! the other reads them.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::message::{MESSAGE_BYTES, PATIENCE, REQUESTS, accept, prepare, send_one};
use super::totals::Totals;

/// How long messages flow before the reader says that they do.
const WARM_UP: Duration = Duration::from_millis(700);

/// Accepts this number of connections, answers their requests, and then sends messages over one
/// after the other, until the reader closes.
///
/// # Errors
/// What the system says.
pub fn send(listener: &TcpListener, connections: usize, file: Option<&File>) -> io::Result<()> {
    let streams = accept(listener, connections, file)?;
    loop {
        for stream in &streams {
            if send_one(stream, file).is_err() {
                return Ok(()); // the reader has closed
            }
        }
    }
}

/// Connects to these addresses in turn, and reads messages until `stop` says so. `steady` is called
/// once they flow. What is read is added to `totals`.
///
/// # Errors
/// What the system says.
pub fn receive(
    addresses: &[SocketAddr],
    connections: usize,
    steady: impl FnOnce() + Send,
    totals: &Totals,
    stop: &AtomicBool,
) -> io::Result<()> {
    let mut bytes = [0; MESSAGE_BYTES];
    let to = addresses.iter().cycle().take(connections);
    let streams = to.map(|address| {
        let stream = TcpStream::connect_timeout(address, PATIENCE)?;
        prepare(&stream)?;
        Ok(stream)
    });
    let streams: Vec<TcpStream> = streams.collect::<io::Result<_>>()?;
    for _ in 0..REQUESTS {
        for mut stream in &streams {
            stream.write_all(&[1])?;
            stream.read_exact(&mut bytes)?;
        }
    }
    for mut stream in &streams {
        stream.write_all(&[1])?;
    }
    let is_over = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let until = std::time::Instant::now() + WARM_UP;
            while std::time::Instant::now() < until && !is_over.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(10));
            }
            if totals.get()[0] > 0 {
                steady();
            }
        });
        let read = (|| -> io::Result<()> {
            while !stop.load(Ordering::Acquire) {
                for mut stream in &streams {
                    stream.read_exact(&mut bytes)?;
                    totals.add(bytes.len() as u64);
                }
            }
            Ok(())
        })();
        is_over.store(true, Ordering::Release);
        read
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_flow_until_the_reader_stops() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let sender = std::thread::spawn(move || send(&listener, 3, None));
        let stop = AtomicBool::new(false);
        let steady = || stop.store(true, Ordering::Release);
        let totals = Totals::default();
        receive(&[address], 3, steady, &totals, &stop).unwrap();
        sender.join().unwrap().unwrap();
        let [messages, bytes] = totals.get();
        assert!(messages > 0);
        assert_eq!(bytes, messages * MESSAGE_BYTES as u64);
    }
}
