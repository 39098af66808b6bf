//! What a running switch is told to do: by signals, and by orders at the control socket. Both do
//! the same.

use fairlead_base::Instant;
use fairlead_driver_tun::{EndSignal, TunDevice};

use super::engine::Engine;
use super::lifecycle::{Lifecycle, Step};
use super::{Board, Parting, act, live_ones, notify};
use crate::config::{Settings, show_duration};
use crate::control::{Order, Phase};

/// Does what a signal asks for; how to part when the loop is to be left.
pub(super) fn handle_signal(
    signal: EndSignal,
    life: &mut Lifecycle,
    engine: &mut Engine<TunDevice>,
    now: Instant,
    board: &mut Board<'_>,
) -> Option<Parting> {
    let name = signal.name();
    if signal == EndSignal::Reload {
        return reload(name, life, engine, now, board)
            .is_ok()
            .then_some(Parting::Reload(None));
    }
    let live = engine.live_connections();
    notify::stopping();
    if board.keeps() {
        tracing::info!("{name}: the kernel goes on with {}", live_ones(live));
        board.publish(engine, now);
        tell_end(life, board, Phase::Left);
        return Some(Parting::Keep);
    }
    let step = life.handle_signal(now, live);
    let again = match step {
        Step::Drain => "; once more ends them at once",
        _ => "",
    };
    tracing::info!("{name}: {}{again}", describe(step, live, board.settings));
    act(step, engine, now, board).then_some(Parting::Clean)
}

/// Does what somebody has ordered at the control socket, if anybody has; how to part when the loop
/// is to be left.
pub(super) fn handle_order(
    life: &mut Lifecycle,
    engine: &mut Engine<TunDevice>,
    now: Instant,
    board: &mut Board<'_>,
) -> Option<Parting> {
    let pending = board.desk.take()?;
    match pending.order {
        // Answered without the loop.
        Order::Look => None,
        Order::Reload => {
            let outcome = reload("ordered", life, engine, now, board);
            let parting = outcome.is_ok().then_some(Parting::Reload(None));
            pending.answer(outcome);
            parting
        }
        Order::Drain => {
            let parting = drain(life, engine, now, board);
            tell(life, engine, now, board);
            pending.answer(Ok(Vec::new()));
            parting
        }
    }
}

/// What has changed, when the process is to begin anew; or why it is not.
fn reload(
    by: &str,
    life: &Lifecycle,
    engine: &mut Engine<TunDevice>,
    now: Instant,
    board: &mut Board<'_>,
) -> Result<Vec<String>, String> {
    let outcome = board.may_reload(life);
    if let Err(why) = &outcome {
        notify::not_reloading(why);
    }
    if let Ok(changes) = &outcome {
        notify::reloading();
        for change in changes {
            tracing::info!("reload: {change}");
        }
        let live = live_ones(engine.live_connections());
        tracing::info!("reload, {by}: begins anew; the kernel has {live} meanwhile");
        tell_end(life, board, Phase::Left);
    }
    board.publish(engine, now);
    outcome
}

/// Drains, also where a signal would leave the connections to the kernel: a drain was asked for.
fn drain(
    life: &mut Lifecycle,
    engine: &mut Engine<TunDevice>,
    now: Instant,
    board: &mut Board<'_>,
) -> Option<Parting> {
    let live = engine.live_connections();
    let step = life.handle_drain(now, live);
    if step == Step::Continue {
        return None;
    }
    notify::stopping();
    tracing::info!("drain, ordered: {}", describe(step, live, board.settings));
    act(step, engine, now, board).then_some(Parting::Clean)
}

/// Tells those at the control socket how it goes.
pub(super) fn tell(life: &Lifecycle, engine: &Engine<TunDevice>, now: Instant, board: &Board<'_>) {
    let phase = life.phase();
    let until = life.poll_timeout().filter(|_| life.is_ending());
    board.desk.tell(|state| {
        state.phase = phase;
        state.live = engine.live_connections();
        state.cut_off = life.cut_off();
        state.seconds_left = until.map(|until| until.since(now).as_secs());
    });
}

/// The last that they are told.
pub(super) fn tell_end(life: &Lifecycle, board: &Board<'_>, phase: Phase) {
    board.desk.tell(|state| {
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
            "no new connections; {} {} {}",
            live_ones(live),
            if live == 1 { "has" } else { "have" },
            show_duration(settings.instance.drain_timeout)
        ),
        Step::Abort => format!("resetting {}", live_ones(live)),
        _ => "ending at once".to_owned(),
    }
}
