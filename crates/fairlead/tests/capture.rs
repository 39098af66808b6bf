//! The command `fairlead capture`, with a switch that is played by the test.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fairlead_driver_pcap::{CaptureWriter, Passage};

const PATIENCE: Duration = Duration::from_secs(15);

/// A switch of one capture: answers its request, and sends what `play` writes.
fn switch(
    play: impl FnOnce(&mut CaptureWriter<TcpStream>) -> std::io::Result<()> + Send + 'static,
) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            request.extend(byte);
        }
        let head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
        stream.write_all(head).unwrap();
        let mut writer = CaptureWriter::new(stream, "test", &["fl0"]).unwrap();
        // It ends with the reader, or with an error when that is gone.
        let _ = play(&mut writer);
    });
    (address, thread)
}

fn packet(writer: &mut CaptureWriter<TcpStream>) -> std::io::Result<()> {
    writer.write(0, Passage::In, 1, &[0x45; 1_000], 0, "x")
}

fn capture(admin: SocketAddr, more: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairlead"));
    command.args(["capture", "-w", "-", "--admin"]);
    command.arg(admin.to_string()).args(more);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Waits for the end; whether it was a success, and what was told.
fn ended(mut capture: Child) -> (bool, String) {
    let until = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = capture.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > until {
            capture.kill().unwrap();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let mut told = String::new();
    let mut errors = capture.stderr.take().unwrap();
    errors.read_to_string(&mut told).unwrap();
    (status.success(), told)
}

fn signal(capture: &Child, name: &str) {
    let mut kill = Command::new("kill");
    kill.args(["-s", name, &capture.id().to_string()]);
    assert!(kill.status().unwrap().success());
}

/// Packets for ever.
fn flood() -> (SocketAddr, JoinHandle<()>) {
    switch(|writer| {
        loop {
            packet(writer)?;
        }
    })
}

#[test]
fn it_ends_in_time_though_its_reader_stalls() {
    let (admin, thread) = flood();
    let (is_well, told) = ended(capture(admin, &["--seconds", "1"]));
    assert!(is_well && told.contains(" packets, "), "{told}");
    thread.join().unwrap();
}

#[test]
fn it_ends_by_a_signal_though_its_reader_stalls() {
    for name in ["INT", "TERM"] {
        let (admin, thread) = flood();
        let capture = capture(admin, &[]);
        // The pipe is full by then, and no packet more is taken.
        std::thread::sleep(Duration::from_millis(700));
        signal(&capture, name);
        let (is_well, told) = ended(capture);
        assert!(is_well && told.contains(" packets, "), "SIG{name}: {told}");
        thread.join().unwrap();
    }
}
