//! Pairs that are handed off and taken back again and again, while bytes pass at any moment of it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::handoff::{built_example, byte_at, connect, echo, front, ping, socket, switch};
use crate::harness::{Family, Origin, PATIENCE, SetAtEnd, on_the_fast_path, rounds};

/// Connections at once.
const CONNECTIONS: usize = 4;

/// Bytes go there and back until it is over. How many.
fn talk(mut stream: &TcpStream, from: u64, seed: u64, is_over: &AtomicBool) -> u64 {
    let (mut at, mut dice) = (from, seed);
    while !is_over.load(Ordering::Acquire) {
        dice = dice.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        let bytes: Vec<u8> = (at..at + 1 + (dice >> 33) % 3_000).map(byte_at).collect();
        stream.write_all(&bytes).unwrap();
        let mut got = vec![0; bytes.len()];
        stream
            .read_exact(&mut got)
            .unwrap_or_else(|error| panic!("at {at}: {error}"));
        assert!(got == bytes, "other bytes at {at}");
        at += bytes.len() as u64;
        // Not always: each byte that is sent while a connection moves is sent again late.
        std::thread::sleep(Duration::from_millis(50 + (dice >> 40) % 200));
    }
    at
}

/// `FAIRLEAD_TURNS` makes other numbers of turns.
#[test]
fn turns_leave_sockets_as_they_were() {
    on_the_fast_path(|lab| {
        let family = Family::V4;
        let _server = Origin::start(lab, family.server_at(1, 7), echo);
        let switch = switch(lab);
        let asked = std::env::var("FAIRLEAD_TURNS").ok();
        let turns = asked.map_or(rounds(400, 100_000), |text| text.parse().expect("a number"));
        let mut command = lab
            .switch
            .command(&built_example("turns").to_string_lossy());
        command.args([
            front(family).to_string(),
            family.server_at(1, 7).to_string(),
        ]);
        command
            .arg(socket(lab))
            .args([(turns / CONNECTIONS).to_string(), "1".into()]);
        let mut process = lab.switch.start(command.stdout(Stdio::piped())).unwrap();
        let output = process.child().stdout.take().unwrap();
        let mut lines = BufReader::new(output).lines().map(Result::unwrap);
        assert!(lines.next().unwrap().starts_with("listening"));
        let is_over = AtomicBool::new(false);
        let bytes = std::thread::scope(|scope| {
            let _at_end = SetAtEnd(&is_over);
            let talkers: Vec<_> = (0..CONNECTIONS)
                .map(|at| {
                    let stream = connect(lab, family);
                    stream.set_read_timeout(Some(PATIENCE)).unwrap();
                    let is_over = &is_over;
                    scope.spawn(move || {
                        ping(&stream, 0);
                        let bytes = talk(&stream, 65_536, at as u64, is_over);
                        drop(stream);
                        bytes
                    })
                })
                .collect();
            let mut done = 0;
            while done < CONNECTIONS {
                let line = lines.next().expect("it goes on");
                println!("{line}");
                assert!(
                    !line.starts_with("failed") && !line.starts_with("other"),
                    "{line}"
                );
                done += usize::from(line == "as before");
            }
            is_over.store(true, Ordering::Release);
            talkers
                .into_iter()
                .map(|one| one.join().unwrap())
                .sum::<u64>()
        });
        println!("{turns} turns, {bytes} bytes");
        assert_eq!(switch.count("live"), 0);
    });
}
