//! Handles signals and orders from the control socket. Both have the same effects.

use fairlead_base::Instant;
use fairlead_driver_tun::{EndSignal, TunDevice};

use super::engine::Engine;
use super::lifecycle::{Lifecycle, Step};
use super::reload::LeftOpen;
use super::{ExitMode, LoopContext, act, live_ones, notify};
use crate::config::{Settings, show_duration};
use crate::control::{Order, Phase};

/// Handles a signal. Returns the exit mode if the loop must end.
pub(super) fn handle_signal(
    signal: EndSignal,
    life: &mut Lifecycle,
    engine: &mut Engine<TunDevice>,
    now: Instant,
    context: &mut LoopContext<'_>,
) -> Option<ExitMode> {
    let name = signal.name();
    if signal == EndSignal::Reopen {
        context.access_log.reopen();
        return None;
    }
    if signal == EndSignal::Reload {
        return reload(name, life, engine, now, context)
            .is_ok()
            .then_some(ExitMode::Reload(LeftOpen::default()));
    }
    let live = context.live(engine);
    notify::stopping();
    if context.keeps() {
        tracing::info!("{name}: the kernel keeps forwarding {}", live_ones(live));
        context.publish(engine, now);
        tell_end(life, context, Phase::Left);
        return Some(ExitMode::Keep);
    }
    let step = life.handle_signal(now, live);
    let again = match step {
        Step::Drain => "; a second signal resets them at once",
        _ => "",
    };
    tracing::info!("{name}: {}{again}", describe(step, live, context.settings));
    act(step, engine, now, context).then_some(ExitMode::Clean)
}

/// Handles the next order from the control socket, if there is one. Returns the exit mode if the
/// loop must end.
pub(super) fn handle_order(
    life: &mut Lifecycle,
    engine: &mut Engine<TunDevice>,
    now: Instant,
    context: &mut LoopContext<'_>,
) -> Option<ExitMode> {
    let pending = context.control_queue.take()?;
    match pending.order {
        // Answered by the control socket's thread.
        Order::Look => None,
        Order::Reload => {
            let outcome = reload("by order", life, engine, now, context);
            let exit_mode = outcome
                .is_ok()
                .then_some(ExitMode::Reload(LeftOpen::default()));
            pending.answer(outcome);
            exit_mode
        }
        Order::Drain => {
            let exit_mode = drain(life, engine, now, context);
            tell(life, engine, now, context);
            pending.answer(Ok(Vec::new()));
            exit_mode
        }
    }
}

/// The configuration changes if the process is to restart, or why it is not.
fn reload(
    by: &str,
    life: &Lifecycle,
    engine: &mut Engine<TunDevice>,
    now: Instant,
    context: &mut LoopContext<'_>,
) -> Result<Vec<String>, String> {
    let outcome = context.may_reload(life);
    if let Err(why) = &outcome {
        notify::not_reloading(why);
    }
    if let Ok(changes) = &outcome {
        notify::reloading();
        for change in changes {
            tracing::info!("reload: {change}");
        }
        let live = live_ones(context.live(engine));
        tracing::info!("reload ({by}): restarting; the kernel forwards {live} meanwhile");
        tell_end(life, context, Phase::Left);
    }
    context.publish(engine, now);
    outcome
}

/// Drains, even with `on_stop = "keep"`, where a signal would leave the connections to the kernel.
fn drain(
    life: &mut Lifecycle,
    engine: &mut Engine<TunDevice>,
    now: Instant,
    context: &mut LoopContext<'_>,
) -> Option<ExitMode> {
    let live = context.live(engine);
    let step = life.handle_drain(now, live);
    if step == Step::Continue {
        return None;
    }
    notify::stopping();
    tracing::info!(
        "drain (by order): {}",
        describe(step, live, context.settings)
    );
    act(step, engine, now, context).then_some(ExitMode::Clean)
}

/// Publishes the state to clients of the control socket.
pub(super) fn tell(
    life: &Lifecycle,
    engine: &Engine<TunDevice>,
    now: Instant,
    context: &LoopContext<'_>,
) {
    let phase = life.phase();
    let until = life.poll_timeout().filter(|_| life.is_ending());
    context.control_queue.tell(|state| {
        state.phase = phase;
        state.live = context.live(engine);
        state.cut_off = life.cut_off();
        state.seconds_left = until.map(|until| until.since(now).as_secs());
    });
}

/// Publishes the final state.
pub(super) fn tell_end(life: &Lifecycle, context: &LoopContext<'_>, phase: Phase) {
    context.control_queue.tell(|state| {
        state.phase = phase;
        state.cut_off = life.cut_off();
        state.seconds_left = None;
        if phase == Phase::Ended {
            state.live = 0;
        }
    });
}

fn describe(step: Step, live: u64, settings: &Settings) -> String {
    match step {
        Step::Drain => format!(
            "no new connections; {} {} {} to finish",
            live_ones(live),
            if live == 1 { "has" } else { "have" },
            show_duration(settings.instance.drain_timeout)
        ),
        Step::Abort => format!("resetting {}", live_ones(live)),
        _ => "stopping at once".to_owned(),
    }
}
