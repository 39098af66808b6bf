//! The access log: its lines in the file that `[log]` names, whoever handles the packets.

use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use fairlead_netns::Signal;
use serde_json::Value;

use crate::harness::{
    Connection, Family, Lab, Origin, PATIENCE, Switch, prefix_in, web, web_service,
    with_and_without_the_fast_path,
};

const REQUEST: &[u8] = b"GET /a\"\\\xc3\xa4?secret=1 HTTP/1.1\r\nHost: a.example\r\n\
                         Connection: close\r\n\r\n";

/// The lines of a file, once there are `count` at least.
fn lines_of(path: &Path, count: usize) -> Vec<String> {
    let until = Instant::now() + PATIENCE;
    loop {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        if text.lines().count() >= count {
            return text.lines().map(str::to_owned).collect();
        }
        assert!(
            Instant::now() < until,
            "{count} lines are not there: {text}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends `bytes` and reads to the end: the client's address, and how many bytes came back.
fn exchange(lab: &Lab, port: u16, bytes: &[u8]) -> (String, u64) {
    let mut connection = Connection::to(lab, Family::V4.virtual_at(port));
    connection.stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    // What follows a refusal may be a RST.
    let _ = connection.stream.read_to_end(&mut answer);
    (connection.local().to_string(), answer.len() as u64)
}

fn configuration(lab: &Lab, mode: &str, format: &str) -> (String, std::path::PathBuf) {
    let path = lab.file(&format!("access-{mode}.{format}"), "");
    std::fs::remove_file(&path).unwrap();
    let log = format!(
        "access = \"all\"\ntarget = \"file:{}\"\nformat = \"{format}\"\n",
        path.display()
    );
    let secure = format!(
        "[[service]]\nname = \"secure\"\nlisten = \"{}\"\nprotocol = \"tls\"\nsource = \"snat\"\n\
         [[service.route]]\nsni = \"tls.example\"\npool = \"four\"\n",
        Family::V4.virtual_at(443)
    );
    let services = web_service("snat", "", "", |family| match family {
        Family::V4 => vec![family.server_at(1, 8080)],
        Family::V6 => Vec::new(),
    });
    let prefix = prefix_in(mode, "").replace("access = \"all\"\n", &log);
    (format!("{prefix}{services}{secure}"), path)
}

fn object(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

#[test]
fn every_connection_has_a_line_in_the_file_and_rotation_loses_none() {
    with_and_without_the_fast_path(|lab, mode| {
        let serve = web("pages", false, std::sync::Arc::default());
        let _server = Origin::start(lab, Family::V4.server_at(1, 8080), serve);

        let (file, path) = configuration(lab, mode, "json");
        let mut switch = Switch::start_with(lab, &file);
        let (client, bytes_out) = exchange(lab, 80, REQUEST);
        let line = object(&lines_of(&path, 1)[0]);
        assert_eq!(line["message"], "closed", "{mode} {line}");
        assert_eq!(line["client"], client);
        for (name, wanted) in [
            ("service", "web"),
            ("pool", "four"),
            ("protocol", "http"),
            ("method", "GET"),
            ("host", "a.example"),
            ("path", "/a\"\\x5c\\xc3\\xa4"),
            ("end", "finished"),
        ] {
            assert_eq!(line[name], wanted, "{mode} {name} of {line}");
        }
        assert_eq!(line["bytes_in"], REQUEST.len(), "{mode} {line}");
        assert_eq!(line["bytes_out"], bytes_out, "{mode} {line}");
        assert!(
            line["head_ms"]
                .as_f64()
                .is_some_and(|millis| millis < 5_000.0)
        );
        // The kernel program does not say when the server answered.
        assert_eq!(
            line.get("connect_ms").is_some(),
            switch.status()["mode"] == "engine",
            "{mode} {line}"
        );
        // Known only if the engine has seen the first segment of the response.
        assert!(
            line.get("status").is_none_or(|status| *status == 200),
            "{mode} {line}"
        );

        let (client, _) = exchange(lab, 80, b"GET / HTTP/1.1\nHost: a\n\n");
        let line = object(&lines_of(&path, 2)[1]);
        assert_eq!(line["message"], "refused", "{mode} {line}");
        assert_eq!(
            (&line["client"], &line["status"]),
            (&client.into(), &400.into())
        );
        assert_eq!(line["reason"], "http_malformed");

        // The server speaks no TLS; the hello is routed all the same.
        let mut curl = lab.client.command("curl");
        let resolve = format!("tls.example:443:{}", Family::V4.virtual_at(443).ip());
        curl.args([
            "-sk",
            "--max-time",
            "5",
            "--resolve",
            &resolve,
            "https://tls.example/",
        ]);
        assert!(!curl.output().expect("running curl").status.success());
        let line = object(&lines_of(&path, 3)[2]);
        assert_eq!(
            (&line["service"], &line["sni"]),
            (&"secure".into(), &"tls.example".into())
        );
        let alpn = line["alpn"].as_str().unwrap_or_default();
        assert!(
            alpn.split(',').any(|one| one == "http/1.1"),
            "{mode} {line}"
        );
        assert_eq!(line.get("host"), None);

        let moved = path.with_extension("1");
        std::fs::rename(&path, &moved).unwrap();
        switch.signal(Signal::User1);
        switch.wait_for_log("is opened again");
        exchange(lab, 80, REQUEST);
        assert_eq!(object(&lines_of(&path, 1)[0])["host"], "a.example");
        assert_eq!(lines_of(&moved, 3).len(), 3);
        assert_eq!(switch.count("access_log_lines_lost"), 0);
        if mode != "engine" {
            let nowhere = file.replace(&path.display().to_string(), "/proc/nowhere");
            lab.file("fairlead.toml", nowhere);
            switch.signal(Signal::HangUp);
            switch.wait_for_log("cannot open the access log /proc/nowhere");
            exchange(lab, 80, REQUEST);
            lines_of(&path, 2);
        }
        drop(switch);

        let (file, path) = configuration(lab, mode, "text");
        let _switch = Switch::start_with(lab, &file);
        let (client, _) = exchange(lab, 80, REQUEST);
        let line = lines_of(&path, 1).remove(0);
        for part in [
            format!(" INFO fairlead::connection: closed client={client} "),
            "host=\"a.example\" path=\"/a\\\"\\\\x5c\\\\xc3\\\\xa4\"".to_owned(),
        ] {
            assert!(line.contains(&part), "{part} is not in {line}");
        }
    });
}

#[test]
fn refusals_are_logged_by_default_and_those_above_the_rate_are_summed_up() {
    with_and_without_the_fast_path(|lab, mode| {
        let (file, _) = configuration(lab, mode, "json");
        let (start, rest) = file.split_once("[log]\n").unwrap();
        let (_, rest) = rest.split_once("\n\n").unwrap();
        let mut switch = Switch::start_with(lab, &format!("{start}{rest}"));
        for _ in 0..40 {
            exchange(lab, 80, b"GET / HTTP/1.1\nHost: a\n\n");
        }
        switch.wait_for_status("40 refusals", |status| {
            status["services"][0]["refused"] == 40
        });
        switch.signal(Signal::Terminate);
        assert_eq!(switch.wait_for_end(), Some(0));
        switch.wait_for_log("\"stopped\"");
        let log = switch.log();
        let lines: Vec<Value> = log.lines().map(object).collect();
        let of = |message: &str| -> Vec<&Value> {
            let is_it = |line: &&Value| line["message"] == message;
            lines.iter().filter(is_it).collect()
        };
        let (single, sums) = (of("refused"), of("more refusals"));
        assert!(single.iter().all(|line| line["reason"] == "http_malformed"));
        let summed: u64 = sums
            .iter()
            .map(|line| line["http_malformed"].as_u64().expect("a count"))
            .sum();
        assert!(single.len() >= 10, "{mode} {log}");
        assert_eq!(single.len() as u64 + summed, 40, "{mode} {log}");
        assert_eq!(of("closed").len(), 0);
    });
}
