//! Notifications to the service manager (sd_notify(3)), if there is one.

use sd_notify::NotifyState;

/// Sends a notification. A failure is logged and has no other effect.
fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!("cannot notify the service manager: {error}");
    }
}

/// Reports that the switch is in service.
pub(super) fn ready() {
    tell(&[NotifyState::Ready, NotifyState::Status("in service")]);
}

/// Reports a reload; [`ready`] follows when it is complete.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!("cannot notify the service manager: {error}"),
    }
}

/// Reports a refused reload, so that nobody keeps waiting for it.
pub(super) fn not_reloading(why: &str) {
    reloading();
    let line = why.lines().next().unwrap_or_default();
    let status = format!("reload refused, the old configuration stays in service: {line}");
    tell(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

/// Reports that the switch is stopping.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}
