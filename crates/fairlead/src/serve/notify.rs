//! What a service manager is told (sd_notify(3)), where there is one that listens.

use sd_notify::NotifyState;

/// Told, or not: nothing depends on it.
fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!("the service manager is not told: {error}");
    }
}

/// In service; whatever was said before is over.
pub(super) fn ready() {
    tell(&[NotifyState::Ready, NotifyState::Status("in service")]);
}

/// The process is about to begin anew, and will be [`ready`] again.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!("the service manager is not told: {error}"),
    }
}

/// A reload that was asked for will not be: whoever waits for it need not, and sees why.
pub(super) fn not_reloading(why: &str) {
    reloading();
    let line = why.lines().next().unwrap_or_default();
    let status = format!("no reload, everything goes on as it was: {line}");
    tell(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

/// About to end.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}
