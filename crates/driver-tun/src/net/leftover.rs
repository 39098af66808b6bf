//! Leftovers of instances that are no longer running: rules, and persistent devices.

use super::NetError;
use super::bypass::Bypass;
use super::kernel::{Kernel, Rule, with_kernel};

/// Removes the rules of instances that are no longer running, and returns descriptions. Rules of
/// running instances are not touched.
pub fn remove_leftovers() -> Result<Vec<String>, NetError> {
    with_kernel(async |kernel| {
        let mut removed = Vec::new();
        for v4 in [true, false] {
            // These are read first: an instance that starts in between has what they are for.
            let bypasses = Bypass::all(kernel, v4).await?;
            let rules = kernel.our_rules(v4).await?;
            if rules.is_empty() && bypasses.is_empty() {
                continue;
            }
            // The rules were read before the routes: an instance that starts in between has
            // filled its table by then.
            let routes = kernel.routes(v4).await?;
            let is_left = |rule: &Rule| routes.iter().all(|route| route.table != rule.table);
            for rule in rules.iter().filter(|rule| is_left(rule)) {
                kernel.remove_rule(rule).await?;
                removed.push(rule.describe());
            }
            let devices = kernel.interfaces().await?;
            for bypass in bypasses {
                if devices.iter().all(|one| one.name != bypass.device) {
                    bypass.remove(kernel).await?;
                    removed.push(bypass.describe());
                }
            }
        }
        Ok(removed)
    })
}

/// A device with an owner's name beside its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    /// Its name.
    pub device: String,
    /// True if a process has it open; otherwise it was left behind.
    pub in_use: bool,
}

/// The devices that have this owner ([`super::NetworkPlan::owner`]).
///
/// # Errors
/// When the kernel does not answer.
pub fn owned_by(owner: &str) -> Result<Vec<Owned>, NetError> {
    owned_by_any(|one| one == owner)
}

/// As [`owned_by`], of all owners that these are.
///
/// # Errors
/// When the kernel does not answer.
pub fn owned_by_any(is: impl Fn(&str) -> bool) -> Result<Vec<Owned>, NetError> {
    with_kernel(async |kernel| {
        let all = kernel.interfaces().await?.into_iter();
        let owned = all.filter(|one| one.alias.as_deref().is_some_and(&is));
        let owned = owned.map(|one| Owned {
            device: one.name,
            in_use: one.running,
        });
        Ok(owned.collect())
    })
}

/// Removes a device that `owner` left, with its routes, and the rules that lead to it. Returns
/// descriptions; empty if there is no such device or a process has it open.
///
/// # Errors
/// When the kernel refuses.
pub fn remove_device(device: &str, owner: &str) -> Result<Vec<String>, NetError> {
    with_kernel(async |kernel| {
        let mut interfaces = kernel.interfaces().await?.into_iter();
        let ours = |alias: &Option<String>| alias.as_deref() == Some(owner);
        let found = interfaces.find(|one| one.name == device && ours(&one.alias) && !one.running);
        let Some(found) = found else {
            return Ok(Vec::new());
        };
        let mut removed = Vec::new();
        for v4 in [true, false] {
            for rule in rules_to(kernel, v4, found.index).await? {
                kernel.remove_rule(&rule).await?;
                removed.push(rule.describe());
            }
            for bypass in Bypass::all(kernel, v4).await? {
                if bypass.device == device {
                    bypass.remove(kernel).await?;
                    removed.push(bypass.describe());
                }
            }
        }
        kernel.remove_link(found.index).await?;
        removed.push(format!("device {device}, with its routes"));
        Ok(removed)
    })
}

/// Rules of ours whose table leads to this device.
pub(super) async fn rules_to(
    kernel: &Kernel,
    v4: bool,
    device: u32,
) -> Result<Vec<Rule>, NetError> {
    let rules = kernel.our_rules(v4).await?;
    if rules.is_empty() {
        return Ok(rules);
    }
    let routes = kernel.routes(v4).await?;
    let leads = |rule: &Rule| {
        let mut of_table = routes.iter().filter(|route| route.table == rule.table);
        of_table.any(|route| route.interface == Some(device))
    };
    Ok(rules.into_iter().filter(leads).collect())
}
