//! Programs as they are installed, with their own clients: what they say and send is what they say
//! and send without a card.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fairlead_card::CardCounts;
use fairlead_handoff::Op;
use fairlead_netns::trial::skip;
use fairlead_netns::{Running, program};
use serde_json::Value;

use crate::bench::{Bench, HOST_V4, PATIENCE};
use crate::orders::files;
use crate::whole::content;

/// The client's address.
const CLIENT_V4: &str = "10.88.0.1";

/// A bench, if these programs are installed.
fn bench(name: &str, programs: &[&str]) -> Option<Bench> {
    let missing: Vec<&str> = programs
        .iter()
        .copied()
        .filter(|one| program(one).is_none())
        .collect();
    if !missing.is_empty() {
        skip(name, &format!("not installed: {}", missing.join(", ")));
        return None;
    }
    Bench::new(name)
}

/// A server on the host that listens at port 80.
fn server(bench: &Bench, mut command: Command) -> Running {
    command.stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let running = bench.host.start(&mut command).unwrap();
    Bench::until_listening(&bench.host);
    running
}

/// What a command writes. It must end well, and in time.
fn said(command: &mut Command, input: &str) -> String {
    fn read(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = from.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        })
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().expect("its input");
    let outputs = (child.stdout.take().map(read), child.stderr.take().map(read));
    let input = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let until = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait().unwrap() {
            None if Instant::now() > until => {
                child.kill().unwrap();
                break child.wait().unwrap();
            }
            None => std::thread::sleep(Duration::from_millis(10)),
            Some(status) => break status,
        }
    };
    let _ = writer.join().unwrap();
    let text = |reader: Option<JoinHandle<String>>| reader.unwrap().join().unwrap();
    let (text, errors) = (text(outputs.0), text(outputs.1));
    assert!(status.success(), "{command:?}: {status}: {errors}\n{text}");
    text
}

/// Nothing was broken, and at least so much ran on the card.
fn assert_ran(counts: &CardCounts, handoffs: u64) {
    let moved = counts.commands.given(Op::Handoff);
    let refused: Vec<_> = counts.commands.refused().collect();
    assert!(
        moved >= handoffs,
        "{moved} handed off; refused: {refused:?}"
    );
    assert_eq!((counts.faults, counts.broken_rings), ([0; 5], 0));
    assert_eq!(
        (counts.short_files, counts.commands.malformed_total()),
        (0, 0)
    );
}

#[test]
fn iperf3_runs_in_all_directions() {
    let name = "peers::iperf3_runs_in_all_directions";
    let Some(bench) = bench(name, &["iperf3"]) else {
        return;
    };
    let bytes = 40_000_000;
    let ((), counts) = bench.served(|_| {
        let mut command = bench.command(true, "iperf3", &["-s", "-p", "80", "-i", "0"]);
        // Its data connections are read or written, never both.
        command.env("FAIRLEAD_OFFLOAD_AFTER", "0");
        let _server = server(&bench, command);
        for way in [None, Some("-R"), Some("--bidir")] {
            let mut command = bench.client.command("iperf3");
            command.args(["-c", HOST_V4, "-p", "80", "-J", "-n", &bytes.to_string()]);
            // Little is on its way when it ends; else that may be as much as `tcp_rmem` allows.
            command.args(["-w", "512K"]).args(way);
            let report: Value = serde_json::from_str(&said(&mut command, "")).unwrap();
            // It ends when both directions together have sent that much.
            let got = ["sum_received", "sum_received_bidir_reverse"];
            let got = got.map(|sum| report["end"][sum]["bytes"].as_u64().unwrap_or(0));
            assert!(got[0] + got[1] >= bytes / 2, "{way:?}: {report:#}");
        }
    });
    assert_ran(&counts, 6);
    // Whoever sends asks for `TCP_INFO`, which brings a connection back.
    assert!(
        counts.bytes[1] > bytes / 2,
        "{:?} on the card",
        counts.bytes
    );
    assert!(counts.commands.given(Op::Restore) > 0);
}

/// Commands for Redis, whose answers are the same each time.
const ASKED: &str = "PING
SET key value
APPEND key -and-more
GETRANGE key 3 8
INCRBY number 41
INCR number
RPUSH list a b c d e f
LRANGE list 1 -2
HSET hash one 1 two 2
HGETALL hash
ZADD ranks 3 c 1 a 2 b
ZRANGE ranks 0 -1 WITHSCORES
EVAL \"return string.rep('0123456789', 300000)\" 0
SET big 1
EVAL \"return redis.call('set', 'big', string.rep('x', 2000000))\" 0
STRLEN big
GET big
MULTI
INCR number
GET number
EXEC
BLPOP nothing 0.2
NOSUCHCOMMAND
SAVE
GET number
CONFIG GET maxmemory-policy
";

#[test]
fn redis_answers_as_without_a_card() {
    let name = "peers::redis_answers_as_without_a_card";
    let programs = ["redis-server", "redis-cli", "redis-benchmark"];
    let Some(bench) = bench(name, &programs) else {
        return;
    };
    let redis = |is_offloaded| {
        let words = "--port 80 --bind 0.0.0.0 --protected-mode no --appendonly no --save";
        let mut words: Vec<&str> = words.split(' ').collect();
        words.push("");
        server(&bench, bench.command(is_offloaded, "redis-server", &words))
    };
    let client = |program: &str| {
        let mut command = bench.client.command(program);
        command.args(["-h", HOST_V4, "-p", "80"]);
        command
    };
    let ask = || said(&mut client("redis-cli"), ASKED);
    let kernel = {
        let _server = redis(false);
        ask()
    };
    let _ = std::fs::remove_file(bench.folder.join("dump.rdb"));
    assert!(kernel.len() > 5_000_000, "{}", kernel.len());
    let ((), counts) = bench.served(|_| {
        let _server = redis(true);
        assert!(ask() == kernel, "other answers on the card");
        // A child is forked and writes the data, while connections of the parent live.
        let saved = "SET a b\nGET a\nGET a\nBGSAVE\nGET a\nGET a\nPING\n";
        let saved = said(&mut client("redis-cli"), saved);
        assert_eq!(saved, "OK\nb\nb\nBackground saving started\nb\nb\nPONG\n");
        let pipe: String = (0..20_000)
            .map(|number| format!("SET key{number} value{number}\r\n"))
            .collect();
        let piped = said(client("redis-cli").arg("--pipe"), &pipe);
        assert!(piped.contains("errors: 0, replies: 20000"), "{piped}");
        let mut command = client("redis-benchmark");
        command.args(["-q", "--csv", "-n", "4000", "-c", "20", "-d", "2000"]);
        command.args(["-t", "ping,set,get,lpush,lrange_300,mset"]);
        let lines = said(&mut command, "");
        assert!(lines.lines().count() > 6, "{lines}");
    });
    assert_ran(&counts, 100);
}

/// A server whose answers depend on what it gets.
const NODE: &str = "
const http = require('http'), fs = require('fs'), {execFile} = require('child_process');
http.createServer((request, response) => {
  const [, what, argument] = request.url.split('/');
  if (what === 'echo') { request.pipe(response); return; }
  if (what === 'file') { fs.createReadStream('f' + argument).pipe(response); return; }
  if (what === 'run') { execFile('echo', [argument], (_, out) => response.end(out)); return; }
  const length = Number(argument);
  response.setHeader('Content-Length', length);
  response.end(Buffer.alloc(length, 'node'));
}).listen(80, '0.0.0.0');
";

#[test]
fn node_serves_curl() {
    let name = "peers::node_serves_curl";
    let Some(bench) = bench(name, &["node", "curl"]) else {
        return;
    };
    files(&bench);
    let body: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    std::fs::write(bench.folder.join("body"), &body).unwrap();
    let curl = |arguments: &[&str]| {
        let mut command = bench.client.command("curl");
        command.args(["-sS", "--fail", "--max-time", "30", "--create-dirs"]);
        said(command.args(arguments).current_dir(&bench.folder), "");
    };
    let got = |name: String| std::fs::read(bench.folder.join("got").join(name)).unwrap();
    let at = |path: &str| format!("http://{HOST_V4}{path}");
    let ((), counts) = bench.served(|_| {
        let _server = server(&bench, bench.command(true, "node", &["-e", NODE]));
        // Each call keeps its connection for all addresses.
        for parallel in [&["-Z"][..], &[]] {
            curl(&[parallel, &[&at("/n/[1-400000:39999]"), "-o", "got/#1"]].concat());
            for length in (1..=400_000).step_by(39_999) {
                let expected = b"node".iter().cycle().copied().take(length);
                assert!(got(length.to_string()).into_iter().eq(expected), "{length}");
            }
            curl(&[parallel, &[&at("/file/[0-49]"), "-o", "got/f#1"]].concat());
            (0..50).for_each(|file| assert!(got(format!("f{file}")) == content(file), "{file}"));
            let echo = at("/echo/[1-5]");
            let posted = [&echo, "--data-binary", "@body", "-o", "got/e#1"];
            curl(&[parallel, &posted].concat());
            (1..6).for_each(|echo| assert!(got(format!("e{echo}")) == body, "echo {echo}"));
        }
        curl(&[&at("/run/[1-9]"), "-o", "got/r#1"]);
        (1..10).for_each(|run| assert_eq!(got(format!("r{run}")), format!("{run}\n").as_bytes()));
    });
    assert_ran(&counts, 6);
}

/// Echoes, sends a file, and closes what it does not know; streams and a protocol's `sendfile`.
const ASYNCIO: &str = "
import asyncio
async def serve(reader, writer):
    loop = asyncio.get_running_loop()
    while line := await reader.readline():
        word, number = line.split()
        if word == b'echo':
            left = int(number)
            while left:
                part = await reader.read(min(left, 50_000))
                left -= len(part)
                writer.write(part)
                await writer.drain()
        elif word == b'file':
            with open('f' + number.decode(), 'rb') as file:
                await writer.drain()
                await loop.sendfile(writer.transport, file)
        else:
            break
    writer.close()
async def main():
    server = await asyncio.start_server(serve, '0.0.0.0', 80)
    await server.serve_forever()
asyncio.run(main())
";

#[test]
fn asyncio_serves_streams_and_files() {
    let Some(bench) = bench("peers::asyncio_serves_streams_and_files", &[]) else {
        return;
    };
    files(&bench);
    let ((), counts) = bench.served(|_| {
        let _server = server(&bench, bench.program(true, &["-c", ASYNCIO]));
        let connect = || TcpStream::connect((HOST_V4, 80));
        let mut stream = bench.client.enter(connect).unwrap().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        for file in 0..60 {
            let content = content(file);
            let head = format!("echo {}\n", content.len());
            let mut writer = stream.try_clone().unwrap();
            let mut back = vec![0; content.len()];
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    writer.write_all(head.as_bytes()).unwrap();
                    writer.write_all(&content).unwrap();
                });
                stream.read_exact(&mut back).unwrap();
            });
            assert!(back == content, "echo {file}");
            stream
                .write_all(format!("file {file}\n").as_bytes())
                .unwrap();
            stream.read_exact(&mut back).unwrap();
            assert!(back == content, "file {file}");
        }
        stream.write_all(b"end 0\n").unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    });
    assert_ran(&counts, 1);
    assert!(counts.commands.given(Op::Send) > 100);
}

#[test]
fn curl_and_redis_benchmark_are_clients_on_the_card() {
    let name = "peers::curl_and_redis_benchmark_are_clients_on_the_card";
    let Some(bench) = bench(name, &["curl", "redis-server", "redis-benchmark"]) else {
        return;
    };
    files(&bench);
    let ((), counts) = bench.served(|_| {
        let mut command = bench.peer(&["-c", crate::whole::SERVER]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut web = bench.client.start(&mut command).unwrap();
        Bench::until_listening(&bench.client);
        let files = format!("http://{CLIENT_V4}/f[0-99]");
        let words = ["-sS", "--fail", "--max-time", "30", &files, "-o", "got#1"];
        said(&mut bench.command(true, "curl", &words), "");
        for file in 0..100 {
            let got = std::fs::read(bench.folder.join(format!("got{file}"))).unwrap();
            assert!(got == content(file), "{file}");
        }
        let _ = web.child().kill();
        drop(web);
        let mut command = bench.client.command("redis-server");
        command.args([
            "--port",
            "80",
            "--bind",
            "0.0.0.0",
            "--protected-mode",
            "no",
        ]);
        command.args(["--save", "", "--dir"]).arg(&bench.folder);
        command.stdout(Stdio::null());
        let _redis = bench.client.start(&mut command).unwrap();
        Bench::until_listening(&bench.client);
        let words = "-p 80 -q --csv -n 4000 -c 20 -d 2000 -t set,get,lrange_300 -h";
        let mut words: Vec<&str> = words.split(' ').collect();
        words.push(CLIENT_V4);
        let lines = said(&mut bench.command(true, "redis-benchmark", &words), "");
        assert!(lines.lines().count() > 3, "{lines}");
    });
    assert_ran(&counts, 1 + 20);
}
