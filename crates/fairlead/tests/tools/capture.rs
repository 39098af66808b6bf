//! The command `fairlead capture`, with a switch that is played by the test.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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

fn wall_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_nanos()).unwrap()
}

/// Five packets at once between two statistics; the second says `lost`, `after` the packets.
fn five(after: Duration, lost: u64) -> (SocketAddr, JoinHandle<()>) {
    switch(move |writer| {
        writer.write_statistics(0, wall_ns(), 0, 0)?;
        for _ in 0..5 {
            packet(writer)?;
        }
        std::thread::sleep(after);
        writer.write_statistics(0, wall_ns(), 5, lost)?;
        let mut rest = Vec::new();
        writer.out_mut().read_to_end(&mut rest).map(|_| ())
    })
}

#[test]
fn it_waits_a_moment_for_the_last_word_about_losses() {
    let moment = Duration::from_millis(700);
    for (after, lost, words) in [
        (moment, 123_456, "3 packets, 3.2 KiB to -, 123,456 lost"),
        (moment, 0, ", none lost"),
        (5 * moment, 123_456, ", losses unknown: the capture ended"),
    ] {
        let (admin, thread) = five(after, lost);
        let (is_well, told) = ended(capture(admin, &["--count", "3"]));
        assert!(is_well && told.contains(words), "{told}");
        thread.join().unwrap();
    }
}

#[test]
fn what_a_stalled_reader_did_not_get_is_lost() {
    let (admin, thread) = switch(|writer| {
        writer.write_statistics(0, wall_ns(), 0, 0)?;
        for _ in 0..500 {
            packet(writer)?;
        }
        // An early count that says nothing of the time since.
        writer.write_statistics(0, wall_ns(), 500, 0)?;
        std::thread::sleep(Duration::from_millis(1_500));
        writer.write_statistics(0, wall_ns(), 500, 1_000)
    });
    let (is_well, told) = ended(capture(admin, &["--seconds", "1"]));
    thread.join().unwrap();
    let number = |word: &str| -> u64 {
        let before = told.split(word).next().unwrap();
        let digits = before.rsplit(", ").next().unwrap().replace(',', "");
        digits.parse().unwrap_or_else(|_| panic!("{told}"))
    };
    let sum = number(" packets") + number(" lost");
    assert!(is_well && sum == 1_500, "{told}");
}

/// What has come by then is written, as far as the pipe takes it.
#[test]
fn it_ends_by_a_signal_just_before_its_reader_stalls() {
    let (tell, told) = std::sync::mpsc::channel();
    let (admin, thread) = switch(move |writer| {
        // Two thirds of a pipe, and as much again, which waits for earlier packets a moment.
        for pause in [500, 0] {
            for _ in 0..40 {
                packet(writer)?;
            }
            std::thread::sleep(Duration::from_millis(pause));
        }
        tell.send(()).unwrap();
        let mut rest = Vec::new();
        writer.out_mut().read_to_end(&mut rest).map(|_| ())
    });
    let capture = capture(admin, &[]);
    told.recv_timeout(PATIENCE).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    signal(&capture, "TERM");
    let (is_well, told) = ended(capture);
    assert!(is_well && told.contains(" packets, "), "{told}");
    thread.join().unwrap();
}

#[test]
fn behind_nohup_it_outlives_its_terminal() {
    let (admin, thread) = five(Duration::ZERO, 0);
    let mut command = Command::new("nohup");
    command.args([env!("CARGO_BIN_EXE_fairlead"), "capture", "-w", "-"]);
    command
        .args(["--admin", &admin.to_string()])
        .stdin(Stdio::null());
    let mut capture = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0];
    capture
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut first)
        .unwrap();
    signal(&capture, "HUP");
    // As long as a signal is noticed in, and longer.
    std::thread::sleep(Duration::from_millis(500));
    assert!(capture.try_wait().unwrap().is_none(), "it has ended");
    signal(&capture, "TERM");
    assert!(ended(capture).0);
    thread.join().unwrap();
}

/// A place of its own for a file.
fn place(name: &str) -> std::path::PathBuf {
    let name = format!("fairlead-capture-{}-{name}", std::process::id());
    std::env::temp_dir().join(name)
}

fn capture_to(place: &Path, admin: SocketAddr) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairlead"));
    command.args(["capture", "--admin", &admin.to_string(), "-w"]);
    command.arg(place).stderr(Stdio::piped());
    command
}

#[test]
fn a_named_pipe_waits_for_its_reader_but_not_for_ever() {
    let pipe = place("pipe");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let (admin, thread) = five(Duration::ZERO, 0);
    let capture = capture_to(&pipe, admin).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(700));
    signal(&capture, "TERM");
    let (is_well, told) = ended(capture);
    assert!(
        !is_well && told.contains("the pipe has no reader"),
        "{told}"
    );
    thread.join().unwrap();

    let (admin, thread) = five(Duration::ZERO, 0);
    let mut command = capture_to(&pipe, admin);
    let capture = command.args(["--count", "5"]).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let file = std::fs::read(&pipe).unwrap();
    let (is_well, told) = ended(capture);
    assert!(is_well && told.starts_with("5 packets, "), "{told}");
    assert_eq!(whole_blocks(&file), file.len());
    thread.join().unwrap();
    std::fs::remove_file(&pipe).unwrap();
}

/// How many bytes of a capture are whole blocks.
fn whole_blocks(file: &[u8]) -> usize {
    let mut at = 0;
    while let Some(length) = file.get(at + 4..).and_then(|rest| rest.first_chunk()) {
        let end = at + u32::from_le_bytes(*length) as usize;
        if end > file.len() {
            break;
        }
        at = end;
    }
    at
}

#[test]
fn a_file_that_cannot_grow_any_more_ends_with_a_whole_packet() {
    let file = place("full");
    let (admin, thread) = flood();
    let whole = capture_to(&file, admin);
    let mut command = Command::new("sh");
    // Of 512 or 1,024 bytes each, neither of which a block has.
    command.args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\""]);
    command.arg(whole.get_program()).args(whole.get_args());
    let (is_well, told) = ended(command.stderr(Stdio::piped()).spawn().unwrap());
    assert!(!is_well && told.contains("File too large"), "{told}");
    let written = std::fs::read(&file).unwrap();
    assert!(written.len() > 2_000);
    assert_eq!(whole_blocks(&written), written.len());
    thread.join().unwrap();
    std::fs::remove_file(&file).unwrap();
}

/// Somebody who answers with `words`, and then says nothing more until the asker is gone.
fn stranger(words: &'static str) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(words.as_bytes()).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    (address, thread)
}

#[test]
fn a_file_is_emptied_for_nothing_but_a_capture() {
    let name = format!("fairlead-capture-{}.pcapng", std::process::id());
    let path = std::env::temp_dir().join(name);
    for (words, why) in [
        (
            "HTTP/1.1 200 OK\r\n\r\nhello, world",
            "not a Fairlead capture",
        ),
        ("HTTP/1.1 200 OK\r\n\r\n", "no data for"),
        ("", "no answer"),
    ] {
        std::fs::write(&path, "of old").unwrap();
        let (admin, thread) = stranger(words);
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairlead"));
        command.args(["capture", "--admin", &admin.to_string(), "-w"]);
        command.arg(&path).stderr(Stdio::piped());
        let (is_well, told) = ended(command.spawn().unwrap());
        assert!(!is_well && told.contains(why), "{told}");
        assert_eq!(std::fs::read(&path).unwrap(), b"of old", "{told}");
        thread.join().unwrap();
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn it_ends_by_a_signal_though_the_switch_stalls() {
    let (admin, thread) = switch(|writer| {
        packet(writer)?;
        let mut rest = Vec::new();
        writer.out_mut().read_to_end(&mut rest).map(|_| ())
    });
    let capture = capture(admin, &[]);
    std::thread::sleep(Duration::from_millis(700));
    signal(&capture, "INT");
    let (is_well, told) = ended(capture);
    assert!(is_well && told.starts_with("1 packet, "), "{told}");
    thread.join().unwrap();
}
