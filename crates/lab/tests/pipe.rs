//! Traces that come through a pipe: what is read of one is gone, so it is read once.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::thread;

use fairlead_lab::{Loader, Silent, StreamSpec};

/// More than format detection reads, and than a pipe holds.
const COPIES: usize = 40;

/// Rows that were read of `text` when it came through a pipe, and those that could not be.
fn piped(text: Vec<u8>) -> (u64, u64) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}", reader.as_raw_fd()));
    let writing = thread::spawn(move || writer.write_all(&text));
    let stream = Loader::default()
        .stream(&StreamSpec::file(path), &Silent)
        .unwrap();
    writing.join().unwrap().unwrap();
    let read = stream.note.read.unwrap();
    (read.rows, read.bad)
}

#[test]
fn a_log_that_comes_through_a_pipe_is_read_whole() {
    let log = include_bytes!("../../../tests/traces/nasa.log");
    let whole = log.repeat(COPIES);
    assert!(whole.len() > 256 << 10);
    let lines = whole.iter().filter(|byte| **byte == b'\n').count() as u64;
    assert_eq!(piped(whole), (lines, 0));
}

#[test]
fn rows_of_accesses_that_come_through_a_pipe_are_read_whole() {
    let mut rows = b"time_us,ip,port\n".to_vec();
    for row in 0..20_000 {
        writeln!(rows, "{row},10.0.0.{},1024", row % 250).unwrap();
    }
    assert!(rows.len() > 256 << 10);
    assert_eq!(piped(rows), (20_000, 0));
}
