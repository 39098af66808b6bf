//! Replays captures against configurations and keeps the results.

use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use fairlead::config::parse;
use fairlead::replay::check::Comparison;
use fairlead::replay::outlet::Outlet;
use fairlead::replay::player::Player;
use fairlead::replay::report::{ConnectionReport, Summary};
use fairlead::replay::survey::Survey;
use fairlead::replay::tally::Tally;
use fairlead::replay::target::{PortMap, Targets};
use fairlead_datapath::config::Config;
use fairlead_driver_pcap::CaptureReader;
use fairlead_netns::trial::skip;

/// A web service, a TLS service and a plain one, for both families.
const CONFIG: &str = r#"
[network]
snat = ["100.64.0.0/24", "fd00:64::/120"]

[[service]]
name = "web"
listen = ["10.1.0.3:80", "[2001:db8:1::3]:80"]
protocol = "http"
source = "snat"
[[service.route]]
name = "six"
listen = "[2001:db8:1::3]:80"
pool = "six"
[[service.route]]
name = "images"
path_suffix = [".jpg", ".png", ".gif"]
pool = "images"
[[service.route]]
name = "rest"
pool = "pages"

[[service]]
name = "tls"
listen = ["10.1.0.3:443", "[2001:db8:1::3]:443"]
protocol = "tls"
source = "snat"
[[service.route]]
name = "six"
listen = "[2001:db8:1::3]:443"
pool = "six"
[[service.route]]
name = "google"
sni = "*.google.com"
pool = "images"
[[service.route]]
name = "rest"
pool = "pages"

[[service]]
name = "plain"
listen = "10.1.0.3:5001"
protocol = "tcp"
source = "snat"
[[service.route]]
name = "all"
pool = "pages"

[[pool]]
name = "images"
balance = "least-connections"
server = [{ address = "10.2.0.1:8081" }, { address = "10.2.0.1:8082", weight = 2 }]
[[pool]]
name = "pages"
balance = "maglev"
hash = "client-address"
server = [{ address = "10.2.0.1:8084" }]
[[pool]]
name = "six"
balance = "round-robin"
server = [{ address = "[2001:db8:2::1]:8084" }, { address = "[2001:db8:2::2]:8084" }]
"#;

/// Ways to serve, each of which the switch goes about differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// As it stands.
    Splice,
    /// Servers see the clients' addresses.
    Transparent,
    /// A header of ours before the client's first byte.
    Proxy,
    /// The head is rewritten.
    OneShot,
    /// Nothing is read: servers are connected at once.
    Blind,
    /// Most HTTP requests match no route.
    Refuse,
}

impl Manner {
    pub(crate) const ALL: [Self; 6] = [
        Self::Splice,
        Self::Transparent,
        Self::Proxy,
        Self::OneShot,
        Self::Blind,
        Self::Refuse,
    ];

    pub(crate) fn text(self) -> String {
        match self {
            Self::Splice => CONFIG.to_owned(),
            Self::Transparent => CONFIG.replace("\"snat\"", "\"transparent\""),
            Self::Proxy => {
                let (first, rest) = CONFIG.split_once("[[pool]]").unwrap();
                let rest = rest.replacen("[[pool]]", "[[pool]]\nproxy_protocol = \"v1\"", 1);
                format!("{first}[[pool]]\nproxy_protocol = \"v2\"{rest}")
            }
            Self::OneShot => {
                let (web, rest) = CONFIG.split_once("name = \"tls\"").unwrap();
                let web = web.replace("pool = \"", "treatment = \"one-shot\"\npool = \"");
                format!("{web}name = \"tls\"{rest}")
            }
            Self::Blind => CONFIG
                .replace("\"http\"", "\"tcp\"")
                .replace("\"tls\"\nsource", "\"tcp\"\nsource")
                .replace(
                    "path_suffix = [\".jpg\", \".png\", \".gif\"]\n",
                    "listen = \"10.1.0.3:80\"\n",
                )
                .replace("sni = \"*.google.com\"\n", "listen = \"10.1.0.3:443\"\n"),
            Self::Refuse => CONFIG.replacen(
                "name = \"rest\"",
                "name = \"rest\"\nhost = \"no.example\"",
                1,
            ),
        }
    }

    pub(crate) fn config(self) -> Config {
        match parse(&self.text(), "test.toml") {
            Ok(loaded) => loaded.settings.switch,
            Err(report) => panic!("{self:?}: {}", report.render(false)),
        }
    }
}

/// What came of a replay.
pub(crate) struct Played {
    pub(crate) connections: Vec<ConnectionReport>,
    pub(crate) summary: Summary,
    pub(crate) tally: Tally,
    pub(crate) comparison: Comparison,
    /// The packets on both sides.
    pub(crate) written: Vec<u8>,
}

/// Bytes that several hold.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Ports of servers in the captures that no service has.
fn maps() -> Vec<PortMap> {
    [
        "12865=plain",
        "41197=plain",
        "1644=plain",
        "5228=tls",
        "4434=tls",
    ]
    .map(|map| map.parse().unwrap())
    .into()
}

/// Plays a capture, given twice: for the look ahead and for the replay itself.
pub(crate) fn play_readers(readers: [CaptureReader; 2], manner: Manner, write: bool) -> Played {
    let config = manner.config();
    let targets = Targets::new(&config, &maps()).unwrap();
    let [mut ahead, mut reader] = readers;
    let survey = Survey::of(&mut ahead, &config, &targets, u64::MAX, |_| {});
    let shared = Shared::default();
    let outlet = if write {
        Outlet::to(shared.clone()).unwrap()
    } else {
        Outlet::none()
    };
    let mut player = Player::new(config, targets, survey, outlet).unwrap();
    let mut connections = Vec::new();
    while let Ok(Some(captured)) = reader.next_packet() {
        player.play(&captured).unwrap();
        connections.extend(player.take_finished());
    }
    player.finish().unwrap();
    connections.extend(player.take_finished());
    connections.sort_by_key(|connection| connection.number);
    let played = Played {
        summary: Summary::of(&player, reader.format()),
        tally: player.tally().clone(),
        comparison: player.comparison().clone(),
        connections,
        written: Vec::new(),
    };
    drop(player);
    let written = std::mem::take(&mut *shared.0.lock().unwrap());
    Played { written, ..played }
}

/// Plays a file.
pub(crate) fn play(path: &Path, manner: Manner, write: bool) -> Played {
    let open = || CaptureReader::open(path).unwrap();
    play_readers([open(), open()], manner, write)
}

/// Plays a file that is in memory.
pub(crate) fn play_bytes(file: &[u8], manner: Manner) -> Played {
    let open = || CaptureReader::from_source("test", Cursor::new(file.to_vec())).unwrap();
    play_readers([open(), open()], manner, false)
}

/// The project's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A capture kept with the project.
pub(crate) fn kept(name: &str) -> PathBuf {
    root().join("tests/captures").join(name)
}

fn captures_in(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = folder.read_dir() else {
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            [".pcap", ".pcapng", ".dmp"]
                .iter()
                .any(|kind| name.contains(kind))
        })
        .collect();
    found.sort();
    found
}

/// All captures kept with the project.
pub(crate) fn all_kept() -> Vec<PathBuf> {
    let found = captures_in(&root().join("tests/captures"));
    assert!(found.len() >= 8, "tests/captures is not complete");
    found
}

/// The additional captures, if available; otherwise `test` is reported as skipped.
pub(crate) fn shared(test: &str) -> Vec<PathBuf> {
    let folder = match std::env::var_os("FAIRLEAD_SHARED") {
        Some(folder) => PathBuf::from(folder),
        None => root().join("../shared"),
    };
    let found = captures_in(&folder.join("data/captures"));
    if found.is_empty() {
        let why = "no further captures are at hand; FAIRLEAD_SHARED=FOLDER says where they are";
        skip(test, why);
    }
    found
}

/// The one among `captures` with this beginning of a name.
pub(crate) fn named<'a>(captures: &'a [PathBuf], beginning: &str) -> &'a Path {
    let found = captures.iter().find(|path| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with(beginning))
    });
    found.unwrap_or_else(|| panic!("{beginning} is not among the further captures"))
}
