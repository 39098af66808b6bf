//! Names and the ids that the switch has for them: both follow from the configuration.

use core::net::{IpAddr, SocketAddr};

use fairlead_base::{Address, Endpoint};
use fairlead_datapath::{Connection, Selection, ServerId};
use fairlead_splice::config::{Config, PoolId, Server};

/// The names of a configuration.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    services: Vec<(String, Vec<String>)>,
    pools: Vec<(String, Vec<Server>)>,
}

impl Names {
    /// Those of a configuration.
    pub(crate) fn of(config: &Config) -> Self {
        let services = config.services.iter().map(|service| {
            let routes = service.routes.iter().map(|route| route.name.clone());
            (service.name.clone(), routes.collect())
        });
        let shown = config.front.map_or(usize::MAX, |one| usize::from(one.0));
        let pools = config.pools.iter().take(shown);
        Self {
            services: services.collect(),
            pools: pools
                .map(|pool| (pool.name.clone(), pool.servers.clone()))
                .collect(),
        }
    }

    /// The names of a service and one of its routes.
    pub(super) fn of_route(&self, service: u16, route: u16) -> (String, String) {
        let service = self.services.get(usize::from(service));
        let name = service.map_or("?", |(name, _)| name);
        let route = service.and_then(|(_, routes)| routes.get(usize::from(route)));
        (name.to_owned(), route.map_or("?", |route| route).to_owned())
    }

    /// All servers, with the names of their pools.
    pub(crate) fn servers(&self) -> impl Iterator<Item = (ServerId, &str, &Server)> {
        let pools = self.pools.iter();
        let servers = pools
            .flat_map(|(name, servers)| servers.iter().map(move |server| (name.as_str(), server)));
        (0..=u16::MAX)
            .zip(servers)
            .map(|(id, (pool, server))| (ServerId(id), pool, server))
    }

    /// A pool by its name.
    pub(super) fn pool(&self, name: &str) -> Result<PoolId, String> {
        let at = self.pools.iter().position(|(one, _)| one == name);
        at.map(|at| PoolId(at as u16))
            .ok_or_else(|| unknown("pool", name, self.pools.iter().map(|(one, _)| one.as_str())))
    }

    /// A server by its pool's name and its address.
    pub(super) fn server(&self, pool: &str, address: &str) -> Result<(ServerId, Server), String> {
        self.pool(pool)?;
        let endpoint = endpoint(address)?;
        let of_pool = || self.servers().filter(|(_, name, _)| *name == pool);
        let mut found = of_pool().filter(|(.., server)| server.endpoint == endpoint);
        match found.next() {
            Some((id, _, server)) => Ok((id, *server)),
            None => {
                let all: Vec<_> = of_pool()
                    .map(|(.., one)| one.endpoint.to_string())
                    .collect();
                let all = all.iter().map(String::as_str);
                Err(unknown(&format!("server of pool {pool}"), address, all))
            }
        }
    }

    /// A service by its name.
    pub(super) fn service(&self, name: &str) -> Result<u16, String> {
        let at = self.services.iter().position(|(one, _)| one == name);
        let all = self.services.iter().map(|(one, _)| one.as_str());
        at.map(|at| at as u16)
            .ok_or_else(|| unknown("service", name, all))
    }

    /// The names of a connection's service, route and pool.
    pub(super) fn of_connection(&self, one: &Connection) -> (&str, Option<&str>, Option<&str>) {
        let service = self.services.get(usize::from(one.service));
        let (name, routes) = service.map_or(("?", &[][..]), |(name, routes)| {
            (name.as_str(), routes.as_slice())
        });
        let route = one.route.and_then(|route| routes.get(usize::from(route)));
        let pool = one
            .server
            .and_then(|(_, pool, _)| self.pools.get(usize::from(pool.0)));
        (
            name,
            route.map(String::as_str),
            pool.map(|(name, _)| name.as_str()),
        )
    }

    /// Adds one condition of a query to a selection.
    pub(super) fn select(
        &self,
        selection: &mut Selection,
        key: &str,
        value: &str,
        pool: Option<&str>,
    ) -> Result<(), String> {
        match key {
            "service" => selection.service = Some(self.service(value)?),
            "pool" => selection.pool = Some(self.pool(value)?),
            "server" => {
                let (pool, address) = match (value.split_once('/'), pool) {
                    (Some(both), _) => both,
                    (None, Some(pool)) => (pool, value),
                    (None, None) => {
                        return Err(format!("server {value:?}: expected POOL/ADDRESS:PORT"));
                    }
                };
                selection.server = Some(self.server(pool, address)?.0);
            }
            "client" => selection.client = Some(network(value)?),
            "id" => {
                let id = value.parse();
                selection.id = Some(id.map_err(|error| format!("{value:?}: {error}"))?);
            }
            _ => return Err(format!("unknown parameter {key:?}")),
        }
        Ok(())
    }
}

/// An address and port.
pub(super) fn endpoint(text: &str) -> Result<Endpoint, String> {
    let socket: Result<SocketAddr, _> = text.parse();
    socket
        .map(Endpoint::from)
        .map_err(|_| format!("{text:?} is not an address and port, such as 10.2.0.1:8081"))
}

/// An address or a prefix.
fn network(text: &str) -> Result<(Address, u8), String> {
    let wrong = || format!("{text:?} is not an address or prefix, such as 10.0.0.0/8");
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = match bits {
        None => most,
        Some(bits) => bits.parse().map_err(|_| wrong())?,
    };
    (bits <= most)
        .then(|| (Address::from(address), bits))
        .ok_or_else(wrong)
}

fn unknown<'a>(what: &str, name: &str, all: impl Iterator<Item = &'a str>) -> String {
    const SHOWN_MAX: usize = 12;
    let all: Vec<&str> = all.collect();
    let rest = match all.len().saturating_sub(SHOWN_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let shown = all[..all.len().min(SHOWN_MAX)].join(", ");
    format!("no {what} is called {name:?}; known: {shown}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{SMALL, parse};

    #[test]
    fn names_lead_to_ids_and_unknown_ones_are_answered_with_the_known() {
        let names = Names::of(&parse(SMALL, "a.toml").unwrap().settings.switch);
        assert_eq!(
            names.server("pages", "10.2.0.1:8081").unwrap().0,
            ServerId(0)
        );
        let wrong = names.server("pages", "10.2.0.9:1").unwrap_err();
        assert!(wrong.contains("10.2.0.1:8081"), "{wrong}");
        assert!(
            names
                .server("x", "10.2.0.1:8081")
                .unwrap_err()
                .contains("pages")
        );
        let mut selection = Selection::default();
        let mut select = |key, value| names.select(&mut selection, key, value, None);
        for (key, value) in [
            ("service", "web"),
            ("pool", "pages"),
            ("server", "pages/10.2.0.1:8081"),
            ("client", "10.0.0.0/8"),
            ("client", "2001:db8::/32"),
            ("id", "1f-0000abcd"),
        ] {
            assert_eq!(select(key, value), Ok(()), "{key}={value}");
        }
        for (key, value) in [
            ("service", "x"),
            ("server", "10.2.0.1:8081"),
            ("client", "10.0.0.0/33"),
            ("client", "::/129"),
            ("client", "a"),
            ("id", "x"),
            ("colour", "red"),
        ] {
            assert!(select(key, value).is_err(), "{key}={value}");
        }
    }
}
