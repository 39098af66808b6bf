//! Translates the configuration into a plan for the host's network.

use std::net::{IpAddr, SocketAddr};

use fairlead_driver_tun::net::{NetworkPlan, Prefix};
use fairlead_splice::config::{Config, Route, Service, Source};

use super::restore::owner;
use crate::config::{Mode, Settings};

/// The plan for these settings.
pub(crate) fn network_plan(settings: &Settings) -> NetworkPlan {
    let switch = &settings.switch;
    let listen = switch.services.iter().flat_map(listen_addresses).collect();
    let sources = settings.network.snat.iter().map(|prefix| Prefix {
        address: prefix.address(),
        len: prefix.prefix_len(),
    });
    NetworkPlan {
        device: settings.network.device.clone(),
        mtu: u32::from(settings.network.mtu),
        listen,
        local: Vec::new(),
        own: own_addresses(switch),
        sources: sources.collect(),
        transparent: transparent_servers(switch),
        servers: servers_of(switch, Source::Snat),
        owner: owner(&settings.instance.name),
        may_be_local: settings.fastpath.mode != Mode::Engine,
        resumed: false,
    }
}

fn listen_addresses(service: &Service) -> impl Iterator<Item = IpAddr> {
    service.listen.iter().map(|endpoint| endpoint.addr.to_ip())
}

/// Where the front listens for connections of the switch.
fn own_addresses(switch: &Config) -> Vec<IpAddr> {
    let pool = switch
        .front
        .and_then(|id| switch.pools.get(usize::from(id.0)));
    let servers = pool.into_iter().flat_map(|pool| &pool.servers);
    servers.map(|one| one.endpoint.addr.to_ip()).collect()
}

/// Servers that see the clients' own addresses: those of all pools used by transparent services.
pub(super) fn transparent_servers(switch: &Config) -> Vec<SocketAddr> {
    servers_of(switch, Source::Transparent)
}

/// The servers of all pools used by services with this source.
fn servers_of(switch: &Config, source: Source) -> Vec<SocketAddr> {
    let services = switch.services.iter().filter(|one| one.source == source);
    let pools = services.flat_map(|service| {
        let to_front = service.routes.iter().any(Route::is_to_front);
        let pools = service.routes.iter().filter_map(|route| route.pool);
        pools.chain(switch.front.filter(|_| to_front))
    });
    let mut servers: Vec<SocketAddr> = pools
        .filter_map(|pool| switch.pools.get(usize::from(pool.0)))
        .flat_map(|pool| {
            pool.servers
                .iter()
                .map(|server| server.endpoint.to_socket())
        })
        .collect();
    servers.sort_unstable();
    servers.dedup();
    servers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_has_all_addresses_and_only_transparent_servers() {
        let text = r#"
            [network]
            device = "fl7"
            mtu = 1400
            snat = ["100.64.0.0/24", "fd64::/112"]

            [[service]]
            name = "open"
            listen = ["10.1.0.3:80", "[fd01::3]:80", "10.1.0.3:8080"]
            protocol = "http"
            source = "transparent"
            [[service.route]]
            listen = ["10.1.0.3:80", "10.1.0.3:8080"]
            path = "/a"
            pool = "first"
            [[service.route]]
            pool = "both"

            [[service]]
            name = "hidden"
            listen = "10.1.0.4:80"
            protocol = "http"
            source = "snat"
            [[service.route]]
            pool = "second"

            [[pool]]
            name = "first"
            server = [{ address = "10.2.0.1:81" }]
            [[pool]]
            name = "second"
            server = [{ address = "10.2.0.2:82" }]
            [[pool]]
            name = "both"
            server = [{ address = "10.2.0.1:81" }, { address = "[fd02::1]:83" }]
        "#;
        let loaded = crate::config::parse(text, "test.toml");
        let settings = loaded
            .map_err(|report| report.render(false))
            .unwrap()
            .settings;
        let plan = network_plan(&settings);
        assert_eq!((plan.device.as_str(), plan.mtu), ("fl7", 1_400));
        let listen: Vec<String> = plan.listen.iter().map(IpAddr::to_string).collect();
        assert_eq!(listen, ["10.1.0.3", "fd01::3", "10.1.0.3", "10.1.0.4"]);
        let sources: Vec<String> = plan.sources.iter().map(Prefix::to_string).collect();
        assert_eq!(sources, ["100.64.0.0/24", "fd64::/112"]);
        let servers: Vec<String> = plan.transparent.iter().map(SocketAddr::to_string).collect();
        assert_eq!(servers, ["10.2.0.1:81", "[fd02::1]:83"]);
        assert_eq!(plan.servers, ["10.2.0.2:82".parse().unwrap()]);
    }
}
