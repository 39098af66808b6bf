//! Restores the state that an earlier run of this instance left, and keeps state for the next run.

use std::sync::Arc;

use fairlead_bpf_loader::{LoadError, Pins, retire, survey};
use fairlead_datapath::{Adopted, Estate};
use fairlead_driver_tun::TunDevice;
use fairlead_driver_tun::net::{self, NetworkPlan, Prefix};
use fairlead_survey::{Link, links, program_name, tc_program_ids};

use super::fastpath::in_full;
use crate::config::{Mode, Settings};
use crate::doctor::is_our_name;

/// State restored from an earlier run, and where this run keeps its own.
#[derive(Debug, Default)]
pub(super) struct Restore {
    /// Where maps and links are pinned; `None` if they do not outlive this process.
    pub(super) pins: Option<Arc<Pins>>,
    /// The earlier run's state.
    pub(super) estate: Estate,
    /// The origin of the earlier run's clock, nanoseconds.
    pub(super) origin_ns: Option<u64>,
}

/// The owner recorded at an instance's TUN device.
pub(crate) fn owner(instance: &str) -> String {
    format!("{OWNER}{instance}")
}

/// Prefix of the owners of all instances' devices.
const OWNER: &str = "fairlead:";

impl Restore {
    /// Looks for state of an earlier run. State that exists but cannot be used is an error, because
    /// the kernel still forwards by it. Not being able to persist state is not an error.
    pub(super) fn find(settings: &Settings) -> Result<Self, String> {
        let found = Self::look(settings)?;
        if found.origin_ns.is_none()
            && let Some(stray) = stray_program(&settings.instance.name)
        {
            if let Some(pins) = &found.pins {
                pins.remove_if_empty();
            }
            return Err(stray);
        }
        Ok(found)
    }

    fn look(settings: &Settings) -> Result<Self, String> {
        let instance = &settings.instance.name;
        let engine = settings.fastpath.mode == Mode::Engine;
        let opened = match engine {
            true => Pins::existing(instance),
            false => Pins::open(instance).map(Some),
        };
        let pins = match opened {
            Ok(Some(pins)) => pins,
            Ok(None) => return Ok(Self::default()),
            Err(error) => return Self::nothing(instance, &error),
        };
        if pins.is_private() {
            tracing::warn!(
                "{} exists only in this mount namespace: spliced connections outlive this process \
                 only as long as the namespace; mount the BPF file system on the host to change \
                 that",
                pins.folder().display()
            );
        }
        let kind = &settings.fastpath.flow_table;
        let remains = match survey(&pins, settings.switch.limits.connections, kind) {
            Ok(remains) => remains,
            Err(
                error @ (LoadError::OtherLayout(_)
                | LoadError::OtherFlowTable
                | LoadError::OtherNamespace(_)),
            ) => {
                return Err(error.to_string());
            }
            Err(error) => {
                pins.remove_if_empty();
                return Self::nothing(instance, &error);
            }
        };
        let mut found = Self {
            pins: Some(Arc::new(pins)),
            ..Self::default()
        };
        let Some(remains) = remains else {
            return Ok(found);
        };
        for (misfit, count) in &remains.misfits {
            let what = misfit.name();
            tracing::warn!("dropped {count} records of an earlier run: {what}");
        }
        found.origin_ns = Some(remains.origin_ns);
        found.estate = Estate {
            endpoints: remains.endpoints,
            cookie: Some(remains.cookie),
            offers: remains.offers,
            records: remains.records,
            pairs: remains.pairs,
        };
        if engine {
            found.take_from_kernel();
        }
        Ok(found)
    }

    /// State cannot be persisted, and none was found. That is an error if an earlier run's fast
    /// path must exist: it answers clients with its own cookie secret, and its packets arrive here.
    fn nothing(instance: &str, error: &dyn std::error::Error) -> Result<Self, String> {
        let error = in_full(error);
        if let Some(device) = left_device(instance) {
            return Err(format!(
                "an earlier run of this instance left {device} and a fast path that this run \
                 cannot take over: {error}; start it the same way as the earlier run, or remove \
                 both with `fairlead down`"
            ));
        }
        tracing::warn!("spliced connections will end with this process: {error}");
        Ok(Self::default())
    }

    /// Stops forwarding in the kernel; the engine takes over all connections.
    fn take_from_kernel(&mut self) {
        if let Some(pins) = self.pins.take() {
            if self.origin_ns.is_some() {
                // Read again after the stop: connections may have ended since.
                match retire(&pins, &self.estate.endpoints) {
                    Ok(records) => self.estate.records = records,
                    Err(error) => tracing::error!("cannot stop an earlier run's program: {error}"),
                }
            }
            if let Err(error) = pins.clear() {
                tracing::error!("cannot remove an earlier run's pins: {error}");
            }
        }
        for (_, kept) in &mut self.estate.records {
            kept.given = false;
        }
    }

    /// Call if no kernel mode works for this run: the engine takes over all connections.
    pub(super) fn without_kernel(&mut self) {
        self.take_from_kernel();
    }

    /// The plan extended by what connections of removed services still need.
    pub(super) fn extend(&self, plan: &NetworkPlan) -> NetworkPlan {
        let mut extended = plan.clone();
        let needed = self.estate.in_use();
        let listens = needed.listens.iter().map(|one| one.addr.to_ip());
        extended.listen.extend(listens);
        extended.listen.sort_unstable();
        extended.listen.dedup();
        let servers = needed.servers.iter().map(|one| one.to_socket());
        extended.transparent.extend(servers);
        extended.transparent.sort_unstable();
        extended.transparent.dedup();
        for nat in needed.nats {
            let source = Prefix::host(nat.to_ip());
            if !extended.sources.iter().any(|one| one.covers(&source)) {
                extended.sources.push(source);
            }
        }
        extended
    }
}

/// The device that an earlier run left for the next one, with its fast path.
fn left_device(instance: &str) -> Option<String> {
    let owned = net::owned_by(&owner(instance)).ok()?;
    let left = owned.into_iter().find(|one| !one.in_use)?;
    Some(format!("device {}", left.device))
}

/// Describes a running program of an earlier run that this run cannot reach: its device exists but
/// its pins do not, for example because they are in another mount namespace's BPF file system. A
/// program with an unreadable name (no CAP_SYS_ADMIN) may be it. Programs cannot be attributed
/// while another instance runs; before Linux 6.6 tc programs are not found.
fn stray_program(instance: &str) -> Option<String> {
    let device = left_device(instance)?;
    let others = net::owned_by_any(|one| one.starts_with(OWNER)).ok()?;
    if others.iter().any(|one| one.in_use) {
        return None;
    }
    let all = links().ok()?;
    let strays = all.iter().flat_map(strays);
    let stray = strays.min_by_key(|stray| stray.name.is_none())?;
    Some(stray.words(&device))
}

/// A program on an interface that is not pinned here, and that is or may be ours.
struct Stray<'a> {
    link: &'a str,
    id: u32,
    /// `None` if it cannot be read.
    name: Option<String>,
}

fn strays(link: &Link) -> Vec<Stray<'_>> {
    let at_tc = tc_program_ids(link.index).unwrap_or_else(|error| {
        tracing::warn!("cannot list the programs at {}: {error}", link.name);
        Vec::new()
    });
    let all = at_tc.into_iter().chain(link.xdp.iter().map(|one| one.id));
    let strays = all.filter(|id| !fairlead_bpf_loader::is_pinned(link.index, *id));
    let strays = strays.map(|id| Stray {
        link: &link.name,
        id,
        name: program_name(id).ok(),
    });
    let may_be_ours = |stray: &Stray<'_>| stray.name.as_deref().is_none_or(is_our_name);
    strays.filter(may_be_ours).collect()
}

impl Stray<'_> {
    fn words(&self, device: &str) -> String {
        let (link, id) = (self.link, self.id);
        let what_to_do = "start it where the earlier run was started, or run `fairlead down` there \
                          and here";
        match &self.name {
            Some(_) => format!(
                "an earlier run of this instance left {device}, and its program is still attached \
                 to {link} (id {id}), but it is pinned in a BPF file system other than the one at \
                 /sys/fs/bpf here: {what_to_do}"
            ),
            None => format!(
                "an earlier run of this instance left {device}, but nothing of it is pinned at \
                 /sys/fs/bpf here; without CAP_SYS_ADMIN it is unknown whether the program \
                 attached to {link} (id {id}) belongs to it: {what_to_do}"
            ),
        }
    }
}

/// True while another process runs this instance. What that process created is then neither an
/// obstacle nor a leftover.
pub(crate) fn is_running(plan: &NetworkPlan) -> Result<bool, net::NetError> {
    let mut owned = net::owned_by(&plan.owner)?.into_iter();
    Ok(owned.any(|one| one.in_use && one.device == plan.device))
}

/// Environment variable with the file descriptor of the device that the previous run in this
/// process left open.
pub(super) const DEVICE: &str = "FAIRLEAD_DEVICE";

/// The device, if the previous run left it open. Call it once per process.
pub(super) fn open_device(plan: &NetworkPlan) -> Option<TunDevice> {
    let number = std::env::var(DEVICE).ok()?.parse().ok()?;
    TunDevice::left_open(&plan.device, number)
}

/// Finds the device that an earlier run of this instance left. It is reused if it has the
/// configured name, and removed otherwise. `is_open`: this process already has it open.
pub(super) fn find_device(plan: &mut NetworkPlan, is_open: bool) -> Result<(), net::NetError> {
    for left in net::owned_by(&plan.owner)? {
        let is_ours = is_open && left.device == plan.device;
        if left.in_use && !is_ours {
            continue; // in use, so not a leftover
        }
        if left.device == plan.device {
            plan.resumed = true;
        } else {
            for removed in net::remove_device(&left.device, &plan.owner)? {
                tracing::warn!("removed a leftover of an earlier run: {removed}");
            }
        }
    }
    Ok(())
}

/// Logs what happened to an earlier run's connections.
pub(super) fn tell(adopted: &Adopted) {
    for (misfit, count) in &adopted.misfits {
        let what = misfit.name();
        tracing::warn!("dropped {count} records of an earlier run: {what}");
    }
    tracing::info!(
        connections = adopted.connections,
        at_rest = adopted.at_rest,
        of_retired_services = adopted.of_retired_services,
        to_retired_servers = adopted.to_retired_servers,
        "took over the connections of an earlier run"
    );
}
