//! Run-time state: what the operator ordered of servers and access lists, and what health checks
//! showed. It is kept in a file beside the control socket, so that it survives reloads and
//! restarts.
//!
//! Each order is kept with the configured values that it replaced. Where those have changed since,
//! the configuration wins.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fairlead_base::Endpoint;
use fairlead_datapath::Admin;
use fairlead_splice::access::{AccessEntry, AccessList};
use fairlead_splice::config::{Config, Server};
use serde::{Deserialize, Serialize};

use crate::config::access_entry;

/// The version of the file; another one is not read.
const VERSION: u32 = 1;
/// The longest file that is read, bytes.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// Orders that are kept, at most.
pub(super) const ORDERS_MAX: usize = 4_096;
/// The same, of access lists.
pub(super) const ACCESS_ORDERS_MAX: usize = 4_096;
/// Check states that are older say nothing.
const CHECKS_LAST: Duration = Duration::from_secs(60);

/// What is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RuntimeState {
    version: u32,
    /// The cookie of the network namespace that it is about; 0 before Linux 5.14. The file's
    /// name has the namespace's inode number, which a later namespace can get again.
    #[serde(default)]
    namespace: u64,
    /// When it was written, seconds since 1970.
    written: u64,
    /// Orders about servers.
    pub(super) orders: Vec<ServerOrder>,
    /// What was ordered of announcements.
    #[serde(default)]
    announce: Option<AnnounceOrder>,
    /// Whether the configuration has listening addresses announced.
    #[serde(skip)]
    announce_configured: bool,
    /// Orders about access lists.
    #[serde(default)]
    pub(super) access: Vec<AccessOrder>,
    /// Servers that checks found up or down.
    checks: Vec<CheckMemory>,
}

/// What was ordered of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ServerOrder {
    pub(super) pool: String,
    pub(super) server: String,
    /// The server as the configuration has it; `None` for one that was added.
    pub(super) configured: Option<Configured>,
    /// `ready`, `drain` or `maint`.
    #[serde(default)]
    pub(super) admin: String,
    /// Another weight than the configured one.
    #[serde(default)]
    pub(super) weight: Option<u16>,
    /// Of one that was added.
    #[serde(default)]
    pub(super) backup: bool,
    /// It was removed.
    #[serde(default)]
    pub(super) removed: bool,
}

/// What was ordered of announcements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct AnnounceOrder {
    configured: bool,
    on: bool,
}

/// What was ordered of a prefix in an access list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AccessOrder {
    pub(super) list: String,
    pub(super) prefix: String,
    /// Whether the configuration allows it; `None` where it is not in the list there.
    pub(super) configured: Option<bool>,
    /// Whether it is allowed; `None` where it was removed.
    pub(super) verdict: Option<bool>,
}

/// What the configuration says of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Configured {
    weight: u16,
    backup: bool,
}

impl Configured {
    pub(super) fn weight(self) -> u16 {
        self.weight
    }
}

impl From<&Server> for Configured {
    fn from(server: &Server) -> Self {
        Self {
            weight: server.weight,
            backup: server.backup,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct CheckMemory {
    pool: String,
    server: String,
    is_up: bool,
}

/// The file of an instance whose control socket is at `socket`.
pub(crate) fn path_beside(socket: &Path) -> PathBuf {
    socket.with_extension("state.json")
}

fn namespace() -> u64 {
    fairlead_survey::namespace_cookie().unwrap_or(0)
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

/// The word of an order.
pub(super) fn admin_named(name: &str) -> Option<Admin> {
    Admin::ALL.into_iter().find(|one| one.name() == name)
}

impl RuntimeState {
    /// Reads the file; empty where there is no file, or one that cannot be used, which is logged.
    pub(crate) fn load(path: &Path) -> Self {
        match Self::read(path) {
            Ok(state) => state,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::default(),
            Err(error) => {
                let path = path.display();
                tracing::warn!("orders of an earlier run are not known: {path}: {error}");
                Self::default()
            }
        }
    }

    fn read(path: &Path) -> io::Result<Self> {
        let mut text = Vec::new();
        let file = fs::File::open(path)?;
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text)?;
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(io::Error::other("too long"));
        }
        let mut state: Self = serde_json::from_slice(&text)?;
        if state.version != VERSION {
            let version = state.version;
            return Err(io::Error::other(format!(
                "version {version}, not {VERSION}"
            )));
        }
        if state.namespace != namespace() {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        state.orders.truncate(ORDERS_MAX);
        state.access.truncate(ACCESS_ORDERS_MAX);
        if state.written.abs_diff(now()) > CHECKS_LAST.as_secs() {
            state.checks.clear();
        }
        Ok(state)
    }

    /// Writes the file, whole or not at all.
    pub(crate) fn save(&mut self, path: &Path) -> io::Result<()> {
        self.version = VERSION;
        self.namespace = namespace();
        self.written = now();
        let text = serde_json::to_vec_pretty(self)?;
        let fresh = path.with_added_extension("new");
        let _ = fs::remove_file(&fresh);
        let mut options = fs::OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&fresh)?;
        io::Write::write_all(&mut file, &text)?;
        fs::rename(&fresh, path)
    }

    /// Brings orders into a configuration. Orders that the configuration has
    /// overtaken are forgotten; a line for each.
    pub(crate) fn apply_to(&mut self, config: &mut Config) -> Vec<String> {
        let mut forgotten = Vec::new();
        self.orders.retain(|order| {
            let kept = apply(order, config);
            if !kept {
                let (pool, server) = (&order.pool, &order.server);
                forgotten.push(format!("{pool}/{server}: the configuration has changed"));
            }
            kept
        });
        forgotten.extend(self.apply_access(config));
        forgotten
    }

    /// Whether listening addresses are to be announced. An order that the configuration has
    /// overtaken is forgotten.
    pub(crate) fn announces(&mut self, configured: bool) -> bool {
        self.announce_configured = configured;
        self.announce = self.announce.filter(|order| order.configured == configured);
        self.announce_ordered().unwrap_or(configured)
    }

    /// What was ordered of announcements.
    pub(super) fn announce_ordered(&self) -> Option<bool> {
        self.announce.map(|order| order.on)
    }

    /// Keeps what was ordered of announcements, unless the configuration says the same.
    pub(super) fn note_announce(&mut self, on: bool) {
        let configured = self.announce_configured;
        self.announce = (on != configured).then_some(AnnounceOrder { configured, on });
    }

    /// The same of access lists alone.
    fn apply_access(&mut self, config: &mut Config) -> Vec<String> {
        let mut forgotten = Vec::new();
        let mut changes: BTreeMap<String, Vec<(AccessEntry, Option<bool>)>> = BTreeMap::new();
        let lists = || config.services.iter().flat_map(|service| &service.access);
        self.access.retain(|order| {
            let list = lists().find(|list| list.name() == order.list);
            let entry = access_entry(&order.prefix, false).ok();
            let Some((list, entry)) = list.zip(entry) else {
                return false;
            };
            let kept = list.verdict(entry.first, entry.bits) == order.configured;
            if kept {
                let of_list = changes.entry(order.list.clone()).or_default();
                of_list.push((entry, order.verdict));
            } else {
                let (list, prefix) = (&order.list, &order.prefix);
                forgotten.push(format!("{list} {prefix}: the configuration has changed"));
            }
            kept
        });
        for (name, changes) in changes {
            let mut changed: Option<Arc<AccessList>> = None;
            for list in config.services.iter_mut().flat_map(|one| &mut one.access) {
                if list.name() == name {
                    // All services go on sharing it.
                    let fresh = changed.get_or_insert_with(|| Arc::new(list.changed(&changes)));
                    *list = Arc::clone(fresh);
                }
            }
        }
        forgotten
    }

    fn order_about(&self, pool: &str, server: Endpoint) -> Option<&ServerOrder> {
        let server = server.to_string();
        let mut orders = self.orders.iter();
        orders.find(|one| one.pool == pool && one.server == server)
    }

    /// What was ordered of a server.
    pub(crate) fn admin_of(&self, pool: &str, server: Endpoint) -> Option<Admin> {
        admin_named(&self.order_about(pool, server)?.admin)
    }

    /// The weight that was ordered of a server.
    pub(crate) fn weight_of(&self, pool: &str, server: Endpoint) -> Option<u16> {
        self.order_about(pool, server)?.weight
    }

    /// What checks showed of a server, not long ago.
    pub(crate) fn check_of(&self, pool: &str, server: Endpoint) -> Option<bool> {
        let server = server.to_string();
        let mut checks = self.checks.iter();
        let known = checks.find(|one| one.pool == pool && one.server == server)?;
        Some(known.is_up)
    }

    /// Keeps what checks have shown.
    pub(crate) fn set_checks(&mut self, checks: impl Iterator<Item = (String, Endpoint, bool)>) {
        let memory = checks.map(|(pool, server, is_up)| CheckMemory {
            pool,
            server: server.to_string(),
            is_up,
        });
        self.checks = memory.collect();
    }
}

/// Applies an order; false where the configuration has overtaken it.
fn apply(order: &ServerOrder, config: &mut Config) -> bool {
    let Some(pool) = config.pools.iter_mut().find(|pool| pool.name == order.pool) else {
        return false;
    };
    let Ok(endpoint) = order
        .server
        .parse::<core::net::SocketAddr>()
        .map(Endpoint::from)
    else {
        return false;
    };
    let at = pool.servers.iter().position(|one| one.endpoint == endpoint);
    match (at, order.configured) {
        (None, None) => {
            pool.servers.push(Server {
                weight: order.weight.unwrap_or(1),
                backup: order.backup,
                ..Server::new(endpoint)
            });
            true
        }
        (Some(at), Some(configured)) if configured == Configured::from(&pool.servers[at]) => {
            // An ordered weight is a change of the running switch: the configuration keeps its own.
            if order.removed && pool.servers.len() > 1 {
                pool.servers.remove(at);
            }
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{SMALL, parse};

    fn config() -> Config {
        let file = SMALL.replace(
            "{ address = \"10.2.0.1:8081\" }",
            "{ address = \"10.2.0.1:8081\" }, { address = \"10.2.0.2:8081\", weight = 4 }",
        );
        parse(&file, "a.toml").unwrap().settings.switch
    }

    fn order(server: &str, weight: u16) -> ServerOrder {
        ServerOrder {
            pool: "pages".to_owned(),
            server: server.to_owned(),
            configured: Some(Configured {
                weight,
                backup: false,
            }),
            admin: "drain".to_owned(),
            weight: None,
            backup: false,
            removed: false,
        }
    }

    fn weights(config: &Config) -> Vec<(String, u16)> {
        let servers = config.pools[0].servers.iter();
        servers
            .map(|one| (one.endpoint.to_string(), one.weight))
            .collect()
    }

    #[test]
    fn orders_survive_unless_the_configuration_has_changed() {
        let mut state = RuntimeState {
            orders: vec![
                ServerOrder {
                    weight: Some(9),
                    ..order("10.2.0.2:8081", 4)
                },
                ServerOrder {
                    removed: true,
                    ..order("10.2.0.1:8081", 1)
                },
                ServerOrder {
                    configured: None,
                    weight: Some(2),
                    ..order("10.2.0.7:80", 0)
                },
                // Its weight was 3 when this was ordered.
                order("10.2.0.2:8081", 3),
                order("10.2.0.99:1", 1),
                order("nonsense", 1),
            ],
            ..RuntimeState::default()
        };
        let mut config = config();
        assert_eq!(state.apply_to(&mut config).len(), 3);
        assert_eq!(state.orders.len(), 3);
        let wanted = [("10.2.0.2:8081", 4), ("10.2.0.7:80", 2)];
        assert_eq!(
            weights(&config),
            wanted.map(|(server, weight)| (server.to_owned(), weight))
        );
        let server = config.pools[0].servers[0].endpoint;
        assert_eq!(state.admin_of("pages", server), Some(Admin::Drain));
        assert_eq!(state.weight_of("pages", server), Some(9));
    }

    #[test]
    fn an_order_about_announcements_holds_until_the_configuration_changes() {
        let mut state = RuntimeState::default();
        assert!(state.announces(true));
        state.note_announce(false);
        assert!(!state.announces(true), "over a restart");
        state.note_announce(true);
        assert_eq!(state.announce_ordered(), None, "as configured");
        state.note_announce(false);
        assert!(!state.announces(false));
        assert!(state.announces(true), "the configuration has changed");
    }

    fn with_list(entries: &str) -> Config {
        let list = format!("[[access]]\nname = \"office\"\n{entries}\n[[pool]]");
        let file = SMALL.replacen("[[pool]]", &list, 1);
        let file = file.replace("protocol =", "access = [\"office\"]\nprotocol =");
        parse(&file, "a.toml").unwrap().settings.switch
    }

    #[test]
    fn orders_about_lists_survive_unless_the_configuration_has_changed() {
        let order = |prefix: &str, configured, verdict| AccessOrder {
            list: "office".to_owned(),
            prefix: prefix.to_owned(),
            configured,
            verdict,
        };
        let mut state = RuntimeState {
            access: vec![
                order("10.0.0.0/8", Some(true), None),
                order("10.1.2.3/32", None, Some(false)),
                order("2001:db8::/32", None, Some(true)),
                order("nonsense", None, Some(true)),
                AccessOrder {
                    list: "gone".to_owned(),
                    ..order("10.0.0.0/8", None, Some(true))
                },
            ],
            ..RuntimeState::default()
        };
        let mut config = with_list("allow = [\"10.0.0.0/8\", \"192.0.2.0/24\"]");
        assert_eq!(state.apply_to(&mut config), [""; 0]);
        assert_eq!(state.access.len(), 3);
        let list = &config.services[0].access[0];
        let entries: Vec<_> = list
            .entries()
            .iter()
            .map(|one| format!("{}/{} {}", one.first, one.bits, one.allow))
            .collect();
        let wanted = [
            "2001:db8::/32 true",
            "10.1.2.3/32 false",
            "192.0.2.0/24 true",
        ];
        assert_eq!(entries, wanted);
        // Now the file has the second and no longer the first.
        let mut config = with_list("allow = [\"192.0.2.0/24\"]\ndeny = [\"10.1.2.3\"]");
        assert_eq!(state.apply_to(&mut config).len(), 2);
        assert_eq!(state.access.len(), 1);
        assert_eq!(config.services[0].access[0].entries().len(), 3);
    }

    #[test]
    fn what_was_saved_is_read_and_nonsense_is_not() {
        let folder = std::env::temp_dir().join(format!("fairlead-state-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = path_beside(&folder.join("edge.7.sock"));
        let mut state = RuntimeState {
            orders: vec![order("10.2.0.2:8081", 4)],
            ..RuntimeState::default()
        };
        let server = config().pools[0].servers[0].endpoint;
        state.set_checks([("pages".to_owned(), server, false)].into_iter());
        state.save(&path).unwrap();
        let mut read = RuntimeState::load(&path);
        assert_eq!(read, state);
        assert_eq!(read.check_of("pages", server), Some(false));
        let text = fs::read_to_string(&path).unwrap();
        let old = text.replace("\"written\": ", "\"written\": 1");
        fs::write(&path, old).unwrap();
        read = RuntimeState::load(&path);
        assert_eq!(
            (read.orders.len(), read.check_of("pages", server)),
            (1, None)
        );
        for cut in 0..text.len() {
            fs::write(&path, &text[..cut]).unwrap();
            assert_eq!(RuntimeState::load(&path), RuntimeState::default(), "{cut}");
        }
        let own = format!("\"namespace\": {}", namespace());
        assert!(text.contains(&own), "{text}");
        fs::write(&path, text.replace(&own, "\"namespace\": 77777777")).unwrap();
        assert_eq!(RuntimeState::load(&path), RuntimeState::default());
        fs::write(&path, text.replace("\"version\": 1", "\"version\": 2")).unwrap();
        assert_eq!(RuntimeState::load(&path), RuntimeState::default());
        fs::remove_dir_all(&folder).unwrap();
    }
}
