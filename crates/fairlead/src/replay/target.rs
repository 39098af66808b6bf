//! Selects the connections of a capture to replay, and their services.

use std::collections::BTreeMap;
use std::fmt;

use fairlead_base::Endpoint;
use fairlead_datapath::Config;

/// A listening endpoint and its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Index of the service.
    pub service: u16,
    /// The endpoint that clients are re-addressed to.
    pub listen: Endpoint,
}

/// Why a server in the capture has no target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoTarget {
    /// No service listens on this port.
    Port,
    /// A service listens on this port, but not on an address of this family.
    Family,
}

/// A port of servers in the capture, and the service that represents them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortMap {
    /// The port in the capture.
    pub port: u16,
    /// The service's name.
    pub service: String,
}

impl std::str::FromStr for PortMap {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (port, service) = text
            .split_once('=')
            .filter(|(_, service)| !service.is_empty())
            .ok_or("write SERVERPORT=SERVICE, for example 8080=web")?;
        let port = port
            .parse()
            .map_err(|_| format!("`{port}` is not a port; write SERVERPORT=SERVICE"))?;
        Ok(Self {
            port,
            service: service.to_owned(),
        })
    }
}

/// A [`PortMap`] names a service that the configuration does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownService {
    asked: String,
    known: Vec<String>,
}

impl fmt::Display for UnknownService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.known.join(", ");
        write!(f, "unknown service `{}`; configured: {known}", self.asked)
    }
}

impl std::error::Error for UnknownService {}

/// All targets, by captured server.
#[derive(Clone, Debug)]
pub struct Targets {
    by_endpoint: BTreeMap<Endpoint, Target>,
    by_port: BTreeMap<u16, Vec<Target>>,
}

impl Targets {
    /// A captured server is matched by its endpoint if a service listens there, else by its port in
    /// `maps`, else by the first service that listens on its port.
    ///
    /// # Errors
    /// A map names an unknown service.
    pub fn new(config: &Config, maps: &[PortMap]) -> Result<Self, UnknownService> {
        let mut by_endpoint = BTreeMap::new();
        let mut by_port: BTreeMap<u16, Vec<Target>> = BTreeMap::new();
        for map in maps {
            let found = config
                .services
                .iter()
                .position(|service| service.name == map.service);
            let Some(index) = found else {
                return Err(UnknownService {
                    asked: map.service.clone(),
                    known: config
                        .services
                        .iter()
                        .map(|service| service.name.clone())
                        .collect(),
                });
            };
            let listens = config.services[index].listen.iter();
            by_port
                .entry(map.port)
                .or_default()
                .extend(listens.map(|&listen| Target {
                    service: index as u16,
                    listen,
                }));
        }
        for (index, service) in config.services.iter().enumerate() {
            for &listen in &service.listen {
                let target = Target {
                    service: index as u16,
                    listen,
                };
                by_endpoint.insert(listen, target);
                by_port.entry(listen.port).or_default().push(target);
            }
        }
        Ok(Self {
            by_endpoint,
            by_port,
        })
    }

    /// The target for connections to this server.
    ///
    /// # Errors
    /// Why they are not replayed.
    pub fn of(&self, server: Endpoint) -> Result<Target, NoTarget> {
        if let Some(target) = self.by_endpoint.get(&server) {
            return Ok(*target);
        }
        let candidates = self.by_port.get(&server.port).ok_or(NoTarget::Port)?;
        candidates
            .iter()
            .find(|target| target.listen.addr.is_v4() == server.addr.is_v4())
            .copied()
            .ok_or(NoTarget::Family)
    }
}

#[cfg(test)]
mod tests {
    use fairlead_testkit::endpoint;

    use super::*;
    use crate::config::parse;

    fn config() -> Config {
        let text = r#"
            [network]
            snat = "100.64.0.0/24"
            [[service]]
            name = "one"
            listen = ["10.1.0.3:80", "10.1.0.3:81"]
            protocol = "http"
            route = [{ pool = "p" }]
            [[service]]
            name = "two"
            listen = "10.1.0.4:80"
            protocol = "tcp"
            route = [{ pool = "p" }]
            [[pool]]
            name = "p"
            balance = "round-robin"
            server = [{ address = "10.2.0.1:80" }]
        "#;
        match parse(text, "t") {
            Ok(loaded) => loaded.settings.switch,
            Err(report) => panic!("{}", report.render(false)),
        }
    }

    #[test]
    fn the_endpoint_precedes_the_map_precedes_the_port() {
        let map = |text: &str| text.parse::<PortMap>().unwrap();
        let targets = Targets::new(&config(), &[map("81=two"), map("9000=one")]).unwrap();
        let of = |text: &str| {
            let target = targets.of(endpoint(text))?;
            Ok((target.service, target.listen.to_string()))
        };
        let is = |service: u16, listen: &str| Ok((service, listen.to_owned()));
        assert_eq!(of("10.1.0.4:80"), is(1, "10.1.0.4:80"));
        assert_eq!(of("10.1.0.3:81"), is(0, "10.1.0.3:81"));
        assert_eq!(of("192.0.2.1:81"), is(1, "10.1.0.4:80"));
        assert_eq!(of("192.0.2.1:80"), is(0, "10.1.0.3:80"));
        assert_eq!(of("192.0.2.1:9000"), is(0, "10.1.0.3:80"));
        assert_eq!(of("192.0.2.1:9001"), Err(NoTarget::Port));
        assert_eq!(of("[2001:db8::1]:80"), Err(NoTarget::Family));
    }

    #[test]
    fn maps_are_parsed_and_invalid_ones_refused() {
        let map: PortMap = "8080=a=b".parse().unwrap();
        assert_eq!((map.port, &*map.service), (8080, "a=b"));
        let wrong = "http=web".parse::<PortMap>().unwrap_err();
        assert_eq!(wrong, "`http` is not a port; write SERVERPORT=SERVICE");
        let unknown = Targets::new(&config(), &["1=three".parse().unwrap()]).unwrap_err();
        assert_eq!(
            unknown.to_string(),
            "unknown service `three`; configured: one, two"
        );
    }
}
