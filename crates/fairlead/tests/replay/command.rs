//! The command: what it prints, what it writes, how it ends.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fairlead_driver_pcap::CaptureReader;
use fairlead_netns::trial::skip;
use serde_json::Value;

use crate::support::{Manner, kept};

/// A folder of its own for one test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("replay-{name}"));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("edge.toml"), Manner::Splice.text()).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn replay(&self, capture: &Path, more: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_fairlead"))
            .arg("replay")
            .arg(capture)
            .arg("--config")
            .arg(self.file("edge.toml"))
            .args(more)
            .current_dir(&self.0)
            .output()
            .unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_line_for_each_connection_and_a_summary() {
    let folder = Folder::new("lines");
    let output = folder.replay(&kept("http-2011.pcap"), &["-w", "out.pcapng"]);
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{shown}");
    assert_eq!(text(&output.stderr), "");
    assert_eq!(
        shown
            .lines()
            .filter(|line| line.contains(" -> web 10.1.0.3:80 ("))
            .count(),
        8
    );
    for part in [
        "1: 192.168.2.76:52028 -> web 10.1.0.3:80 (captured: 72.21.211.173:80)  \
         GET c.thumbs.redditmedia.com/IEeSI3Q47xHE0UEz.jpg  images -> images 10.2.0.1:808",
        "in 6 packets 380 B, out 4 packets 2.2 KiB  finished\n",
        "no request in the capture\n",
        "capture     149 packets, 115.1 s, pcap\n",
        "replayed    144 packets of 8 connections, 6 spliced\n",
        "  5  web    rest    -> pages\n",
        "translated  110 packets, all correct\n",
        "packets to out.pcapng\n",
    ] {
        assert!(shown.contains(part), "{part:?} is not in\n{shown}");
    }
    assert!(!shown.contains('\x1b'));
    let written = std::fs::metadata(folder.file("out.pcapng")).unwrap();
    assert!(written.len() > 100_000, "both sides of 144 packets");
}

#[test]
fn packets_go_to_standard_output_and_the_text_elsewhere() {
    let folder = Folder::new("pipe");
    let capture = kept("http-2011.pcap");
    let to_file = folder.replay(&capture, &["-w", "out.pcapng"]);
    let written = std::fs::read(folder.file("out.pcapng")).unwrap();
    let piped = folder.replay(&capture, &["-w", "-"]);
    assert!(piped.status.success());
    assert!(piped.stdout == written, "the same capture");
    let shown = text(&to_file.stdout).replace("to out.pcapng", "to standard output");
    assert_eq!(text(&piped.stderr), shown);
    assert!(!folder.file("-").exists());
}

#[test]
fn tcpdump_reads_what_is_written_and_comments_name_the_leg() {
    let folder = Folder::new("tcpdump");
    let output = folder.replay(&kept("http-2011.pcap"), &["-w", "out.pcapng"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let mut reader = CaptureReader::open(&folder.file("out.pcapng")).unwrap();
    while reader.next_packet().unwrap().is_some() {}
    let written = std::fs::read(folder.file("out.pcapng")).unwrap();
    let written = String::from_utf8_lossy(&written).into_owned();
    for comment in [
        "side=client packet 1 of the capture, re-addressed",
        " of the capture, translated",
        "side=client made by the switch",
        "side=server made by the switch",
    ] {
        assert!(written.contains(comment), "no {comment:?}");
    }
    if fairlead_netns::program("tcpdump").is_none() {
        let test = "command::tcpdump_reads_what_is_written_and_comments_name_the_leg";
        return skip(test, "in part: there is no tcpdump to read the file");
    }
    // As its input, which it reads whatever user it becomes.
    let mut tcpdump = Command::new("tcpdump");
    tcpdump.args(["-nnr", "-"]);
    tcpdump.stdin(std::fs::File::open(folder.file("out.pcapng")).unwrap());
    let output = tcpdump.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines = text(&output.stdout).lines().count() as u64;
    assert_eq!(lines, reader.packets());
}

#[test]
fn objects_for_programs() {
    let folder = Folder::new("json");
    let output = folder.replay(&kept("tls-sites.pcapng.zst"), &["--json"]);
    assert!(output.status.success());
    let shown = text(&output.stdout);
    let objects: Vec<Value> = shown
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let (summary, connections) = objects.split_last().unwrap();
    assert_eq!(connections.len(), 7);
    assert!(
        connections
            .iter()
            .all(|object| object["kind"] == "connection")
    );
    let google = connections
        .iter()
        .find(|object| object["subject"] == "drive.google.com");
    assert_eq!(google.unwrap()["decision"]["route"], "google");
    assert_eq!(google.unwrap()["outcome"]["how"], "open");
    assert_eq!(summary["kind"], "summary");
    assert_eq!(summary["format"], "pcapng");
    assert_eq!(
        (&summary["packets"], &summary["different"]),
        (&60.into(), &0.into())
    );
}

#[test]
fn packets_can_be_limited_and_ports_mapped() {
    let folder = Folder::new("limits");
    let snapped = kept("tcp-snapped-raw-ip-2025.pcap");
    let output = folder.replay(&snapped, &["--limit", "50"]);
    assert_eq!(output.status.code(), Some(1), "nothing was replayed");
    let told = format!(
        "{}: contains no connection that could be replayed\n",
        snapped.display()
    );
    assert_eq!(text(&output.stderr), told);
    let shown = text(&output.stdout);
    assert!(shown.contains("capture     50 packets"), "{shown}");
    let output = folder.replay(&snapped, &["--limit", "0"]);
    assert_eq!(output.status.code(), Some(2));
    let told = text(&output.stderr);
    assert!(
        told.contains("'0' for '--limit <N>'") && told.contains("1 or more"),
        "{told}"
    );
    // Without a map nothing goes to a service; the ports are listed.
    assert!(
        shown.contains("--map PORT=SERVICE replays others:"),
        "{shown}"
    );
    assert!(shown.contains("port 12865"), "{shown}");
    let maps = ["--map", "12865=plain", "--map", "41197=plain"];
    let shown = text(&folder.replay(&snapped, &maps).stdout);
    assert!(
        shown.contains("replayed    160 packets of 2 connections, 2 spliced"),
        "{shown}"
    );
    assert!(
        shown.contains("51 packets not captured completely"),
        "{shown}"
    );

    let output = folder.replay(&snapped, &["--map", "12865=plane"]);
    assert_eq!(output.status.code(), Some(1));
    let told = "--map: unknown service `plane`; configured: web, tls, plain\n";
    assert_eq!(text(&output.stderr), told);
    for map in ["12865", "12865=", "x=plain", "70000=plain"] {
        assert_eq!(
            folder.replay(&snapped, &["--map", map]).status.code(),
            Some(2),
            "{map}"
        );
    }
}

#[test]
fn a_cut_capture_is_played_up_to_the_cut() {
    let folder = Folder::new("cut");
    let whole = std::fs::read(kept("http-2011.pcap")).unwrap();
    let cut = folder.file("cut.pcap");
    std::fs::write(&cut, &whole[..whole.len() - 10]).unwrap();
    let output = folder.replay(&cut, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("capture     148 packets"));
    let told = text(&output.stderr);
    assert!(
        told.starts_with(&format!("{}: packet 149, byte ", cut.display())),
        "{told}"
    );
    assert!(told.ends_with(
        "the file ends in the middle of it; the part before the damage was \
                            replayed\n"
    ));
}

#[test]
fn what_cannot_be_played_is_said() {
    let folder = Folder::new("errors");
    let ends = |capture: &Path, more: &[&str], part: &str| {
        let output = folder.replay(capture, more);
        assert_eq!(output.status.code(), Some(1));
        let told = text(&output.stderr);
        assert!(told.contains(part) && told.ends_with('\n'), "{told}");
        assert_eq!(text(&output.stdout), "");
    };
    ends(
        &folder.file("none.pcap"),
        &[],
        "none.pcap: cannot be opened: ",
    );
    ends(
        &folder.file("edge.toml"),
        &[],
        "edge.toml: neither pcap nor pcapng: it starts with ",
    );
    for stream in ["/dev/stdin", "-", "."] {
        let told = format!("{stream} is not a regular file; the capture is read twice");
        ends(Path::new(stream), &[], &told);
    }
    let capture = folder.file("c.pcap");
    std::fs::copy(kept("tls-ipv6-2020.pcap"), &capture).unwrap();
    let length = std::fs::metadata(&capture).unwrap().len();
    ends(
        &capture,
        &["-w", "./c.pcap"],
        "c.pcap is the capture itself; write elsewhere",
    );
    std::fs::hard_link(&capture, folder.file("other.pcapng")).unwrap();
    ends(
        &capture,
        &["-w", "other.pcapng"],
        "other.pcapng is the capture itself; write elsewhere",
    );
    assert_eq!(std::fs::metadata(&capture).unwrap().len(), length);
    ends(
        &capture,
        &["-w", "edge.toml"],
        "edge.toml is the configuration; write elsewhere",
    );
    ends(
        &capture,
        &["-w", "no/such/folder.pcapng"],
        "cannot write no/such/folder.pcapng: ",
    );
    std::fs::write(folder.file("edge.toml"), "[[service]]\nname = 1\n").unwrap();
    ends(&capture, &[], "edge.toml:2:");
}
