//! What an earlier run of this instance left, and what this one leaves.

use std::sync::Arc;

use fairlead_bpf_loader::{LoadError, Pins, retire, survey};
use fairlead_datapath::{Adopted, Estate};
use fairlead_driver_tun::TunDevice;
use fairlead_driver_tun::net::{self, NetworkPlan, Prefix};
use fairlead_survey::{Link, links, program_name, tc_program_ids};

use super::fastpath::in_full;
use crate::config::{Mode, Settings};
use crate::doctor::is_our_name;

/// What was found, and where this run leaves its own.
#[derive(Debug, Default)]
pub(super) struct Inheritance {
    /// Where maps and links outlive this process; `None` when they do not.
    pub(super) pins: Option<Arc<Pins>>,
    /// What the earlier run left.
    pub(super) estate: Estate,
    /// The origin of the earlier run's clock, nanoseconds.
    pub(super) origin_ns: Option<u64>,
}

/// Whose the TUN device is.
pub(crate) fn owner(instance: &str) -> String {
    format!("{OWNER}{instance}")
}

/// What the owners of all instances' devices begin with.
const OWNER: &str = "fairlead:";

impl Inheritance {
    /// Looks for it. What was left and cannot be used is an error, for the kernel still works by
    /// it; that nothing can be left is none.
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
                "{} ends with this mount namespace: spliced connections outlive this process only \
                 as long as that does; mount the BPF file system on the host to change it",
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
            tracing::warn!("{count} records of an earlier run are dropped: {what}");
        }
        found.origin_ns = Some(remains.origin_ns);
        found.estate = Estate {
            endpoints: remains.endpoints,
            cookie: Some(remains.cookie),
            offers: remains.offers,
            records: remains.records,
        };
        if engine {
            found.take_from_kernel();
        }
        Ok(found)
    }

    /// Nothing can be left, and nothing of an earlier run was found: an error where there must be
    /// something, for that answers clients by its own secret, and its packets come here.
    fn nothing(instance: &str, error: &dyn std::error::Error) -> Result<Self, String> {
        let error = in_full(error);
        if let Some(device) = left_device(instance) {
            return Err(format!(
                "an earlier run of this instance has left {device} and a fast path, which this \
                 one cannot take over: {error}; start it as that one was, or remove both with \
                 `fairlead down`"
            ));
        }
        tracing::warn!("spliced connections end with this process: {error}");
        Ok(Self::default())
    }

    /// The kernel is not to forward any more: the engine goes on with all connections.
    fn take_from_kernel(&mut self) {
        if let Some(pins) = self.pins.take() {
            if self.origin_ns.is_some() {
                // As they are when it stops: what has ended since they were read is over.
                match retire(&pins, &self.estate.endpoints) {
                    Ok(records) => self.estate.records = records,
                    Err(error) => tracing::error!("an earlier run's program goes on: {error}"),
                }
            }
            if let Err(error) = pins.clear() {
                tracing::error!("what an earlier run pinned stays: {error}");
            }
        }
        for (_, kept) in &mut self.estate.records {
            kept.given = false;
        }
    }

    /// The kernel forwards for nobody any more, and none of its ways works for this run.
    pub(super) fn without_kernel(&mut self) {
        self.take_from_kernel();
    }

    /// The plan with what connections of services need that are no longer configured.
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

/// The device that an earlier run has left to the next one, with its fast path.
fn left_device(instance: &str) -> Option<String> {
    let owned = net::owned_by(&owner(instance)).ok()?;
    let left = owned.into_iter().find(|one| !one.in_use)?;
    Some(format!("the device {}", left.device))
}

/// A program of an earlier run that goes on where this one cannot reach it, in words: its device is
/// there, but its pins are not, as in another mount namespace's BPF file system. One whose name is
/// not told, for want of CAP_SYS_ADMIN, may be that program. Whose a program is cannot be told
/// while another instance runs; before Linux 6.6 those at tc are not seen.
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

/// A program at an interface that no pin here leads to, and that is ours or may be.
struct Stray<'a> {
    link: &'a str,
    id: u32,
    /// `None` where that is not told.
    name: Option<String>,
}

fn strays(link: &Link) -> Vec<Stray<'_>> {
    let at_tc = tc_program_ids(link.index).unwrap_or_else(|error| {
        tracing::warn!("programs at {} cannot be listed: {error}", link.name);
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
        let what_to_do = "start it where that one was started, or run `fairlead down` there and \
                          here";
        match &self.name {
            Some(_) => format!(
                "an earlier run of this instance has left {device}, and its program is still at \
                 {link} (number {id}), but pinned in another BPF file system than that at \
                 /sys/fs/bpf here: {what_to_do}"
            ),
            None => format!(
                "an earlier run of this instance has left {device}, and nothing of it is pinned \
                 at /sys/fs/bpf here; whether the program at {link} (number {id}) is its own is \
                 not told without CAP_SYS_ADMIN: {what_to_do}"
            ),
        }
    }
}

/// True while another process runs this instance: what that one has made is in nobody's way then,
/// and nothing to be removed.
pub(crate) fn is_running(plan: &NetworkPlan) -> Result<bool, net::NetError> {
    let mut owned = net::owned_by(&plan.owner)?.into_iter();
    Ok(owned.any(|one| one.in_use && one.device == plan.device))
}

/// Where the program before this one in the same process says under which number it left the device
/// open.
pub(super) const DEVICE: &str = "FAIRLEAD_DEVICE";

/// The device, if that program has left it open. To be called once in a process.
pub(super) fn open_device(plan: &NetworkPlan) -> Option<TunDevice> {
    let number = std::env::var(DEVICE).ok()?.parse().ok()?;
    TunDevice::left_open(&plan.device, number)
}

/// Finds the device that an earlier run of this instance left: it is taken up when it is the one
/// that is wanted, and removed when it has another name. `is_open`: this process has it already.
pub(super) fn find_device(plan: &mut NetworkPlan, is_open: bool) -> Result<(), net::NetError> {
    for left in net::owned_by(&plan.owner)? {
        let is_ours = is_open && left.device == plan.device;
        if left.in_use && !is_ours {
            continue; // then it is nobody's leftover
        }
        if left.device == plan.device {
            plan.resumed = true;
        } else {
            for removed in net::remove_device(&left.device, &plan.owner)? {
                tracing::warn!("removed what an earlier run left behind: {removed}");
            }
        }
    }
    Ok(())
}

/// Says what became of an earlier run's connections.
pub(super) fn tell(adopted: &Adopted) {
    for (misfit, count) in &adopted.misfits {
        let what = misfit.name();
        tracing::warn!("{count} records of an earlier run are dropped: {what}");
    }
    tracing::info!(
        connections = adopted.connections,
        at_rest = adopted.at_rest,
        of_retired_services = adopted.of_retired_services,
        to_retired_servers = adopted.to_retired_servers,
        "took over the connections of an earlier run"
    );
}
