//! The terminal loop: fetch, draw, handle keys.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fairlead_driver_tun::EndSignals;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use super::rates::Meter;
use super::rows::Table;
use super::view::{Choice, draw};
use super::{TopArgs, look};
use crate::admin::{Status, StatusError};

/// Maximum delay before a signal is handled.
const TURN: Duration = Duration::from_millis(100);

/// The command of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    End,
    Redraw,
}

/// Runs until `q`, a signal, or the given number of updates, and returns the error of the last
/// update, if any. Always restores the terminal.
pub(super) fn show(
    args: &TopArgs,
    admin: SocketAddr,
    first: &Status,
) -> io::Result<Option<StatusError>> {
    let signals = EndSignals::take_over()?;
    let mut terminal = ratatui::try_init()?;
    let outcome = turns(&mut terminal, &signals, args, admin, first);
    ratatui::restore();
    outcome
}

fn turns(
    terminal: &mut ratatui::DefaultTerminal,
    signals: &EndSignals,
    args: &TopArgs,
    admin: SocketAddr,
    first: &Status,
) -> io::Result<Option<StatusError>> {
    let mut meter = Meter::default();
    let mut choice = Choice {
        in_colour: std::env::var_os("NO_COLOR").is_none(),
        ..Choice::default()
    };
    let _ = meter.note(first, Instant::now());
    let mut table = Table::of(first, None);
    let mut trouble: Option<StatusError> = None;
    let mut left = args.count;
    loop {
        table.sort(choice.order);
        choice.skipped = choice.skipped.min(table.servers.len().saturating_sub(1));
        let said = trouble.as_ref().map(ToString::to_string);
        terminal.draw(|frame| draw(frame, &table, choice, said.as_deref()))?;
        let due = Instant::now() + args.interval;
        while let Some(wait) = due.checked_duration_since(Instant::now()) {
            if signals.poll_signal()?.is_some() {
                return Ok(None);
            }
            if !event::poll(wait.min(TURN))? {
                continue;
            }
            match wish(&event::read()?, &mut choice) {
                Some(Wish::End) => return Ok(None),
                Some(Wish::Redraw) => {
                    choice.skipped = choice.skipped.min(table.servers.len().saturating_sub(1));
                    table.sort(choice.order);
                    terminal.draw(|frame| draw(frame, &table, choice, said.as_deref()))?;
                }
                None => {}
            }
        }
        if left == Some(0) {
            return Ok(trouble);
        }
        left = left.map(|count| count - 1);
        match look(admin) {
            Ok(status) => {
                trouble = None;
                let rates = meter.note(&status, Instant::now());
                if !choice.is_paused {
                    table = Table::of(&status, rates.as_ref());
                }
            }
            // The switch may be restarting.
            Err(error) => trouble = Some(error),
        }
    }
}

fn wish(event: &Event, choice: &mut Choice) -> Option<Wish> {
    let key = match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => key,
        Event::Resize(..) => return Some(Wish::Redraw),
        _ => return None,
    };
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
            return Some(Wish::End);
        }
        KeyCode::Esc if choice.shows_help => choice.shows_help = false,
        KeyCode::Char('q') | KeyCode::Esc => return Some(Wish::End),
        KeyCode::Char('s') => choice.order = choice.order.next(),
        KeyCode::Char('p' | ' ') => choice.is_paused = !choice.is_paused,
        KeyCode::Char('h' | '?') => choice.shows_help = !choice.shows_help,
        KeyCode::Char('j') | KeyCode::Down => choice.skipped = choice.skipped.saturating_add(1),
        KeyCode::Char('k') | KeyCode::Up => choice.skipped = choice.skipped.saturating_sub(1),
        _ => return None,
    }
    Some(Wish::Redraw)
}

#[cfg(test)]
mod tests {
    use ratatui::crossterm::event::KeyEvent;

    use super::*;

    fn press(code: KeyCode, choice: &mut Choice) -> Option<Wish> {
        wish(&Event::Key(KeyEvent::from(code)), choice)
    }

    #[test]
    fn keys_do_what_the_help_says() {
        let mut choice = Choice::default();
        assert_eq!(press(KeyCode::Char('p'), &mut choice), Some(Wish::Redraw));
        assert!(choice.is_paused);
        press(KeyCode::Char('?'), &mut choice);
        assert!(choice.shows_help);
        assert_eq!(press(KeyCode::Esc, &mut choice), Some(Wish::Redraw));
        assert!(!choice.shows_help);
        press(KeyCode::Char('s'), &mut choice);
        assert_eq!(choice.order.name(), "by active");
        press(KeyCode::Up, &mut choice);
        press(KeyCode::Down, &mut choice);
        assert_eq!(choice.skipped, 1);
        assert_eq!(press(KeyCode::Char('x'), &mut choice), None);
        assert_eq!(press(KeyCode::Esc, &mut choice), Some(Wish::End));
        assert_eq!(press(KeyCode::Char('q'), &mut choice), Some(Wish::End));
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(wish(&Event::Key(interrupt), &mut choice), Some(Wish::End));
    }
}
