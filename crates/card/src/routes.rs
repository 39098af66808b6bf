//! The card has the host's addresses and routes, and follows their changes.
//!
//! Routes of the host through other devices are *unreachable* on the card. So the card's own table
//! says whether a peer is reached by its wire, and a connection whose peer is not goes back.

use std::io::Read;
use std::net::UdpSocket;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use fairlead_handoff::Refusal;
use fairlead_netns::Running;
use fairlead_os_tcp::Identity;
use serde_json::Value;

use crate::setup::{ip, list, run, show};

/// Changes come in groups.
const PAUSE: Duration = Duration::from_millis(50);

/// Addresses and routes, as arguments of `ip`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layer3 {
    /// Addresses with their prefix lengths, without link-local ones.
    addresses: Vec<String>,
    /// What stands behind `route add`.
    routes: Vec<String>,
    device: String,
}

impl Layer3 {
    /// Of a device of the host's, or of a card's.
    pub(crate) fn read(card: Option<&str>, device: &str) -> Result<Self, String> {
        let about = show(card, &["addr", "show", "dev", device])?;
        let addresses = about["addr_info"].as_array().cloned().unwrap_or_default();
        let addresses = addresses.iter().filter_map(|one| {
            let is_global = one["scope"] != "link" && one["scope"] != "host";
            let address = one["local"].as_str().filter(|_| is_global)?;
            Some(format!("{address}/{}", one["prefixlen"]))
        });
        let mut routes = Vec::new();
        // By its prefix `ip` knows the family of a route.
        for (family, default) in [("-4", "default"), ("-6", "::/0")] {
            let all = list(card, &[family, "route", "show"])?;
            routes.extend(
                all.iter()
                    .filter_map(|route| line_of(route, device, default)),
            );
        }
        Ok(Self {
            addresses: addresses.collect(),
            routes,
            device: device.to_owned(),
        })
    }

    fn address(&self, order: &str, address: &str) -> String {
        let nodad = match (order, address.contains(':')) {
            ("add", true) => " nodad",
            _ => "",
        };
        format!("addr {order} {address} dev {}{nodad}", self.device)
    }

    /// Lines that add everything.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> + '_ {
        let addresses = self.addresses.iter().map(|one| self.address("add", one));
        let routes = self.routes.iter();
        addresses.chain(routes.map(|line| format!("route add {line}")))
    }

    /// Lines that make this of what is there.
    fn lines_from(&self, present: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        let gone = present
            .routes
            .iter()
            .filter(|one| !self.routes.contains(one));
        lines.extend(gone.map(|line| format!("route del {line}")));
        let gone = present.addresses.iter();
        let gone = gone.filter(|one| !self.addresses.contains(one));
        lines.extend(gone.map(|one| self.address("del", one)));
        let new = self.addresses.iter();
        let new = new.filter(|one| !present.addresses.contains(one));
        lines.extend(new.map(|one| self.address("add", one)));
        let new = self
            .routes
            .iter()
            .filter(|one| !present.routes.contains(one));
        lines.extend(new.map(|line| format!("route add {line}")));
        lines
    }
}

/// A route as the card has it; `None` for those that come with addresses, and for those of no
/// other machine.
fn line_of(route: &Value, device: &str, default: &str) -> Option<String> {
    let to = match route["dst"].as_str()? {
        "default" => default,
        to => to,
    };
    let is_of_link = ["fe80:", "ff00:", "multicast"]
        .iter()
        .any(|prefix| to.starts_with(prefix));
    // An unreachable route of IPv6 has the device lo.
    if (is_of_link || route["dev"] == "lo") && route["type"] != "unreachable" {
        return None;
    }
    let metric = match route["metric"].as_u64() {
        Some(metric) => format!(" metric {metric}"),
        None => String::new(),
    };
    if route["dev"] != device {
        return Some(format!("unreachable {to}{metric}"));
    }
    if route["protocol"] == "kernel" {
        return None;
    }
    let mut line = to.to_owned();
    for (key, word) in [("gateway", "via"), ("prefsrc", "src")] {
        if let Some(value) = route[key].as_str() {
            line += &format!(" {word} {value}");
        }
    }
    Some(format!("{line}{metric} dev {device}"))
}

/// Whether this thread's namespace has the connection's address, and reaches its peer.
pub(crate) fn is_reached(identity: &Identity) -> Result<(), Refusal> {
    let Identity { local, peer } = identity;
    let socket = UdpSocket::bind((local.addr.to_ip(), 0)).map_err(|_| Refusal::Address)?;
    let reached = socket.connect((peer.addr.to_ip(), peer.port));
    reached.map_err(|_| Refusal::Policy)
}

/// Follows the host's addresses and routes as long as it is kept.
pub(crate) struct Follower {
    monitor: Running,
    thread: Option<JoinHandle<()>>,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    has_changed: AtomicBool,
    failures: AtomicU64,
}

impl Drop for Follower {
    fn drop(&mut self) {
        // The thread ends with its output.
        let _ = self.monitor.child().kill();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Makes the card's addresses and routes what the host's are.
fn follow(card: &str, wire: &str, seen: &Seen) {
    let lines = Layer3::read(None, wire)
        .and_then(|wanted| Ok(wanted.lines_from(&Layer3::read(Some(card), wire)?)));
    let failed = match lines {
        Err(_) => 1,
        Ok(lines) if lines.is_empty() => return,
        Ok(lines) if run(Some(card), &lines).is_ok() => 0,
        // The first that failed ended it.
        Ok(lines) => {
            let failed = lines
                .iter()
                .filter(|line| run(Some(card), &[(*line).clone()]).is_err());
            failed.count() as u64
        }
    };
    seen.failures.fetch_add(failed, Ordering::AcqRel);
    seen.has_changed.store(true, Ordering::Release);
}

impl Follower {
    /// Begins. This thread must be in the host's namespace.
    pub(crate) fn begin(card: &str, wire: &str) -> Result<Self, String> {
        let mut monitor = ip(None)?;
        monitor.args(["monitor", "address", "route"]);
        monitor
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut monitor = Running::start(&mut monitor).map_err(|error| error.to_string())?;
        let output = monitor
            .child()
            .stdout
            .take()
            .ok_or("ip monitor: no output")?;
        let seen = Arc::new(Seen::default());
        let (card, wire, of_thread) = (card.to_owned(), wire.to_owned(), Arc::clone(&seen));
        // It is in the namespace of the thread that begins it.
        let thread = std::thread::Builder::new().spawn(move || {
            let mut output = output;
            loop {
                // What has changed since `up`, first.
                follow(&card, &wire, &of_thread);
                match output.read(&mut [0; 4_096]) {
                    Ok(0) | Err(_) => return,
                    Ok(_) => std::thread::sleep(PAUSE),
                }
            }
        });
        Ok(Self {
            monitor,
            thread: Some(thread.map_err(|error| error.to_string())?),
            seen,
        })
    }

    /// Whether something has changed since this was last asked.
    pub(crate) fn has_changed(&self) -> bool {
        self.seen.has_changed.swap(false, Ordering::AcqRel)
    }

    /// How often a change could not be followed.
    pub(crate) fn failures(&self) -> u64 {
        self.seen.failures.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn routes_elsewhere_are_unreachable() {
        let line = |route: Value| line_of(&route, "eth1", "default");
        let six = json!({"dst": "default", "dev": "eth0", "metric": 1024});
        let six = line_of(&six, "eth1", "::/0");
        assert_eq!(six.unwrap(), "unreachable ::/0 metric 1024");
        let kept = json!({"dst": "default", "gateway": "10.0.0.1", "dev": "eth1", "metric": 7});
        assert_eq!(
            line(kept).unwrap(),
            "default via 10.0.0.1 metric 7 dev eth1"
        );
        let with_address = json!({"dst": "10.0.0.0/24", "dev": "eth1", "protocol": "kernel"});
        assert_eq!(line(with_address), None);
        let other = json!({"dst": "10.1.0.0/24", "dev": "eth0", "protocol": "kernel"});
        assert_eq!(line(other).unwrap(), "unreachable 10.1.0.0/24");
        let of_card =
            json!({"type": "unreachable", "dst": "fd00::/64", "dev": "lo", "metric": 1024});
        assert_eq!(line(of_card).unwrap(), "unreachable fd00::/64 metric 1024");
        assert_eq!(line(json!({"dst": "fe80::/64", "dev": "eth0"})), None);
        assert_eq!(
            line(json!({"dst": "::1", "dev": "lo", "metric": 256})),
            None
        );
    }

    #[test]
    fn a_change_is_a_difference() {
        let of = |addresses: &[&str], routes: &[&str]| Layer3 {
            addresses: addresses.iter().map(|&one| one.to_owned()).collect(),
            routes: routes.iter().map(|&one| one.to_owned()).collect(),
            device: "eth1".to_owned(),
        };
        let before = of(
            &["10.0.0.2/24", "fd00::2/64"],
            &["default via 10.0.0.1 dev eth1"],
        );
        let after = of(&["10.0.0.2/24", "fd00::3/64"], &["unreachable default"]);
        let lines = after.lines_from(&before);
        let expected = [
            "route del default via 10.0.0.1 dev eth1",
            "addr del fd00::2/64 dev eth1",
            "addr add fd00::3/64 dev eth1 nodad",
            "route add unreachable default",
        ];
        assert_eq!(lines, expected);
        assert!(after.lines_from(&after).is_empty());
    }
}
