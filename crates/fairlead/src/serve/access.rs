//! Access lists in the kernel: the lists of the configuration, numbered, and what was denied there.

use std::sync::Arc;

use fairlead_base::Endpoint;
use fairlead_bpf_loader::{AccessPrefix, AccessRule, FlowTable, Kernel, LoadError};
use fairlead_datapath::Snapshot;
use fairlead_splice::access::AccessList;
use fairlead_splice::config::{Config, OnDenied, Service};

/// Tells the program the lists of all services; `listens` are the endpoints by index. Without
/// a list nothing changes.
pub(super) fn tell(
    kernel: &mut Kernel,
    table: &mut FlowTable,
    config: &Config,
    listens: &[Endpoint],
) -> Result<(), LoadError> {
    let lists = distinct(&config.services);
    if lists.is_empty() {
        return Ok(());
    }
    let mut rules = Vec::new();
    let mut counter = 0;
    for service in &config.services {
        let of_listen = |listen: &Endpoint| rule(service, *listen, &lists, listens, counter);
        rules.extend(service.listen.iter().filter_map(of_listen));
        counter += service.access.len() as u32;
    }
    let prefixes = (0..).zip(&lists).flat_map(|(list, one)| {
        one.entries().iter().map(move |entry| AccessPrefix {
            list,
            first: entry.first,
            bits: entry.bits,
            allow: entry.allow,
        })
    });
    kernel.set_access(table, prefixes, &rules)
}

/// The lists in use, each once; its place is its number.
pub(super) fn distinct(services: &[Service]) -> Vec<&Arc<AccessList>> {
    let mut lists: Vec<&Arc<AccessList>> = Vec::new();
    for list in services.iter().flat_map(|service| &service.access) {
        if !lists.iter().any(|known| Arc::ptr_eq(known, list)) {
            lists.push(list);
        }
    }
    lists
}

fn rule(
    service: &Service,
    listen: Endpoint,
    lists: &[&Arc<AccessList>],
    listens: &[Endpoint],
    counter: u32,
) -> Option<AccessRule> {
    let index = listens.iter().position(|one| *one == listen)?;
    let number = |list: &Arc<AccessList>| {
        let mut known = lists.iter();
        let number = known.position(|known| Arc::ptr_eq(known, list))?;
        Some((number as u32, list.default_allow()))
    };
    (!service.access.is_empty()).then_some(AccessRule {
        index: u16::try_from(index).ok()?,
        listen,
        lists: service.access.iter().filter_map(number).collect(),
        counter,
        reset: service.on_denied == OnDenied::Reset,
    })
}

/// Adds what the program denied. Lists are counted in the order of the services.
pub(super) fn add_denied(kernel: &Kernel, switch: &mut Snapshot) {
    let services = &mut switch.services;
    let count = services.iter().map(|service| service.denied.len()).sum();
    if count == 0 {
        return;
    }
    let Ok(denied) = kernel.access_denied(count) else {
        return;
    };
    let counts = services.iter_mut().flat_map(|service| &mut service.denied);
    for ((_, count), more) in counts.zip(denied) {
        *count += more;
    }
}
