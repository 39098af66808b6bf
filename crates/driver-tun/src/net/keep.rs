//! Restores settings that other programs remove. A device that is set down loses its routes, and
//! network managers remove foreign rules when they restart.

use core::net::IpAddr;
use core::time::Duration;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;

use super::apply::{MAIN, everything};
use super::kernel::with_kernel;
use super::{DUMMY_ADDRESS, NetError, Network, NetworkPlan, Prefix};

/// Monitors the settings on its own thread until it is dropped.
#[derive(Debug)]
pub struct Keeper {
    /// Its end is the thread's.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Checks at an interval and restores what is missing. `tell` receives descriptions of it, one
    /// line each, or the error. Drop it before the settings are removed or left.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        network: &Network,
        every: Duration,
        mut tell: impl FnMut(Result<Vec<String>, NetError>) + Send + 'static,
    ) -> io::Result<Self> {
        let (plan, table) = (network.plan.clone(), network.table());
        let (stop, stopped) = mpsc::channel::<()>();
        let work = move || {
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                tell(mend(&plan, table));
            }
        };
        let thread = std::thread::Builder::new().name("routes".to_owned());
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread.spawn(work)?),
        })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // after a panic of its own there is nothing to be kept
        }
    }
}

/// Restores what is missing; rules lead to `table`.
fn mend(plan: &NetworkPlan, table: Option<u32>) -> Result<Vec<String>, NetError> {
    with_kernel(async |kernel| {
        let mut mended = Vec::new();
        let interfaces = kernel.interfaces().await?.into_iter();
        let mut ours = interfaces.filter(|one| one.alias.as_deref() == Some(&plan.owner));
        let device = ours.find(|one| one.name == plan.device).ok_or_else(|| {
            NetError::Refused(plan.device.clone(), "the device is gone".to_owned())
        })?;
        if !device.up {
            kernel.bring_up(device.index, plan.mtu, &plan.owner).await?;
            mended.push(format!("device {}, which was down", plan.device));
        }
        for destination in plan.destinations() {
            if kernel
                .add_route(destination, device.index, MAIN, true)
                .await?
            {
                mended.push(format!("route {destination} dev {}", plan.device));
            }
        }
        for address in &plan.own {
            if kernel.add_own(*address, device.index).await? {
                mended.push(format!("address {address} dev {}", plan.device));
            }
        }
        let held_v4 = plan.local.iter().any(IpAddr::is_ipv4);
        if held_v4 && kernel.add_address(device.index, DUMMY_ADDRESS).await? {
            mended.push(format!("address {DUMMY_ADDRESS} dev {}", plan.device));
        }
        for address in plan.local.iter().copied().map(Prefix::host) {
            if kernel.add_local(address, device.index).await? {
                mended.push(format!("route local {address} dev {}", plan.device));
            }
        }
        let Some(table) = table else {
            return Ok(mended);
        };
        for bypass in plan.bypasses() {
            if bypass.v4 && kernel.add_address(device.index, DUMMY_ADDRESS).await? {
                mended.push(format!("address {DUMMY_ADDRESS} dev {}", plan.device));
            }
            if bypass.add(kernel).await? {
                mended.push(bypass.describe());
            }
        }
        let servers = plan.returns();
        for v4 in [true, false] {
            let mut missing: Vec<_> = servers.iter().filter(|one| one.is_ipv4() == v4).collect();
            if missing.is_empty() {
                continue;
            }
            let all = everything(v4);
            if kernel.add_route(all, device.index, table, true).await? {
                mended.push(format!("route {all} dev {} table {table}", plan.device));
            }
            let there = kernel.our_rules(v4).await?;
            let there = there.iter().filter(|rule| rule.table == table);
            let there: Vec<_> = there.map(|rule| rule.server).collect();
            missing.retain(|server| !there.contains(server));
            for server in missing {
                mended.push(kernel.add_rule(*server, table).await?.describe());
            }
        }
        Ok(mended)
    })
}
