//! Dynamic answers, for a web server that asks over a Unix socket: bytes from memory, each answer
//! on a connection of its own, as a CGI program would.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use super::mix::{Document, LARGEST};
use crate::handoff::message::PATIENCE;

/// Answers at a time; other requests wait.
const THREADS: usize = 4;
/// Longest head of a request.
const HEAD_MAX: usize = 4_096;

/// Answers requests until the process ends.
///
/// # Errors
/// What the system says of the listener.
pub fn serve(listener: &UnixListener) -> io::Result<()> {
    let memory = &vec![b'd'; LARGEST as usize];
    std::thread::scope(|scope| {
        let work = || -> io::Result<()> {
            loop {
                let (stream, _) = listener.accept()?;
                // Whoever asked has left, or sent no request.
                let _ = answer(stream, memory);
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended.flatten().collect()
    })
}

fn answer(mut stream: UnixStream, memory: &[u8]) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut head = Vec::with_capacity(HEAD_MAX);
    while !head.ends_with(b"\r\n\r\n") {
        let mut part = [0; 1_024];
        let read = stream.read(&mut part)?;
        if read == 0 || head.len() + read > HEAD_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        head.extend_from_slice(&part[..read]);
    }
    let head = String::from_utf8_lossy(&head);
    let path = head.split(' ').nth(1).unwrap_or_default();
    let Some(document) = Document::of_dynamic(path) else {
        return stream.write_all(b"HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    };
    let body = &memory[..document.bytes() as usize];
    let head = format!(
        "HTTP/1.0 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(request: &str) -> String {
        let (mut client, server) = UnixStream::pair().unwrap();
        let served = std::thread::spawn(move || answer(server, &[b'd'; 10_000]));
        client.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        served.join().unwrap().unwrap();
        text
    }

    #[test]
    fn an_answer_has_the_bytes_of_the_file_that_is_named() {
        let answer = ask("GET /dynamic/dir00003/class1_4 HTTP/1.0\r\nHost: a\r\n\r\n");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("Content-Length: 5120"), "{head}");
        assert_eq!(body.len(), 5_120);
        assert!(ask("GET /other HTTP/1.0\r\n\r\n").starts_with("HTTP/1.0 404"));
    }
}
