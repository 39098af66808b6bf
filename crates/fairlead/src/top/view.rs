//! Draws the table on a terminal.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table as Grid};

use super::rows::{Order, Table, rate};
use crate::screen::grouped;

/// The user's choices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) order: Order,
    pub(super) is_paused: bool,
    pub(super) shows_help: bool,
    /// Colours are on (no `NO_COLOR`).
    pub(super) in_colour: bool,
    /// Number of servers scrolled past.
    pub(super) skipped: usize,
}

/// Below this width some columns are omitted.
const NARROW: u16 = 70;
/// Maximum number of lines for drops.
const DROPS_MAX: usize = 6;
/// Width of one total: its name, its value and the space between them.
const TOTAL_WIDTH: u16 = 28;

const HELP: [&str; 6] = [
    "q, Esc   quit",
    "s        sort servers: configured, active, new/s, failures",
    "p, Space pause, resume",
    "j k ↓ ↑  scroll servers",
    "h, ?     this help",
    "rates cover the time since the last update",
];

/// Draws everything that fits, most important first.
pub(super) fn draw(frame: &mut Frame<'_>, table: &Table, choice: Choice, trouble: Option<&str>) {
    let area = frame.area();
    let across = (area.width / TOTAL_WIDTH).max(1);
    let totals = (table.totals.len() as u16).div_ceil(across);
    let drops = table.drops.len().min(DROPS_MAX);
    let drops = if drops == 0 { 0 } else { drops as u16 + 1 };
    let [title, path, numbers, services, servers, dropped, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(totals),
        Constraint::Length(table.services.len().min(8) as u16 + 1),
        Constraint::Min(2),
        Constraint::Length(drops),
        Constraint::Length(1),
    ])
    .areas(area);
    let colour = |colour| match choice.in_colour {
        true => Style::new().fg(colour),
        false => Style::new(),
    };
    let health = match (trouble, table.is_well) {
        (Some(_), _) => colour(Color::Red),
        (None, true) => colour(Color::Green),
        (None, false) => colour(Color::Yellow),
    };
    let shown = trouble.unwrap_or(&table.title);
    frame.render_widget(
        Line::styled(shown, health.add_modifier(Modifier::BOLD)),
        title,
    );
    frame.render_widget(
        Line::from(format!("fast path: {}", table.fast_path)).dim(),
        path,
    );
    draw_totals(frame, table, numbers, across);
    draw_services(frame, table, services, area.width);
    draw_servers(frame, table, servers, choice);
    draw_drops(frame, table, dropped);
    let state = if choice.is_paused { "paused" } else { "" };
    let keys = format!(
        "q quit  s sort ({})  p pause  h help  {state}",
        choice.order.name()
    );
    frame.render_widget(Line::from(keys).dim(), foot);
    if choice.shows_help {
        draw_help(frame, area);
    }
}

fn draw_totals(frame: &mut Frame<'_>, table: &Table, area: Rect, across: u16) {
    for (at, (name, value)) in (0u16..).zip(&table.totals) {
        let (column, row) = (at % across, at / across);
        if row >= area.height {
            return;
        }
        let width = TOTAL_WIDTH.min(area.width.saturating_sub(column * TOTAL_WIDTH));
        let place = Rect::new(area.x + column * TOTAL_WIDTH, area.y + row, width, 1);
        let line = Line::from(vec![
            Span::from(format!("{name} ")).dim(),
            Span::from(value.clone()).bold(),
        ]);
        frame.render_widget(line, place);
    }
}

fn heading(words: &[&'static str]) -> Row<'static> {
    Row::new(
        words
            .iter()
            .map(|word| Cell::from(*word))
            .collect::<Vec<_>>(),
    )
    .style(Style::new().add_modifier(Modifier::UNDERLINED))
}

fn draw_services(frame: &mut Frame<'_>, table: &Table, area: Rect, width: u16) {
    let first = if width < NARROW { 14 } else { 24 };
    let widths = [
        Constraint::Length(first),
        Constraint::Length(8),
        Constraint::Length(10),
        Constraint::Min(8),
    ];
    let rows = table.services.iter().map(|row| Row::new(row.clone()));
    let grid =
        Grid::new(rows, widths).header(heading(&["service", "new/s", "refused/s", "accepted"]));
    frame.render_widget(grid, area);
}

fn draw_servers(frame: &mut Frame<'_>, table: &Table, area: Rect, choice: Choice) {
    let narrow = area.width < NARROW;
    let known = |value: Option<f64>| value.map_or("-".to_owned(), rate);
    let rows = table.servers.iter().skip(choice.skipped).map(|row| {
        let mut cells = vec![
            row.server.clone(),
            row.state.clone(),
            grouped(row.active),
            known(row.rates.map(|rates| rates.0)),
        ];
        if !narrow {
            cells.insert(0, row.pool.clone());
            cells.push(known(row.rates.map(|rates| rates.1)));
            cells.push(grouped(row.total));
            cells.push(grouped(row.failures));
        }
        let style = match row.state.as_str() {
            "down" if choice.in_colour => Style::new().fg(Color::Red),
            "down" => Style::new().add_modifier(Modifier::REVERSED),
            _ => Style::new(),
        };
        Row::new(cells).style(style)
    });
    let grid = if narrow {
        let widths = [
            Constraint::Min(15),
            Constraint::Length(7),
            Constraint::Length(7),
            Constraint::Length(6),
        ];
        Grid::new(rows, widths).header(heading(&["server", "state", "active", "new/s"]))
    } else {
        let widths = [
            Constraint::Length(14),
            Constraint::Min(21),
            Constraint::Length(7),
            Constraint::Length(8),
            Constraint::Length(7),
            Constraint::Length(8),
            Constraint::Length(12),
            Constraint::Length(8),
        ];
        Grid::new(rows, widths).header(heading(&[
            "pool", "server", "state", "active", "new/s", "failed/s", "total", "failed",
        ]))
    };
    frame.render_widget(grid, area);
}

fn draw_drops(frame: &mut Frame<'_>, table: &Table, area: Rect) {
    let widths = [
        Constraint::Min(20),
        Constraint::Length(8),
        Constraint::Length(14),
    ];
    let rows = table
        .drops
        .iter()
        .take(DROPS_MAX)
        .map(|row| Row::new(row.clone()));
    let grid = Grid::new(rows, widths).header(heading(&["dropped or refused", "/s", "total"]));
    frame.render_widget(grid, area);
}

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let width = area.width.min(62);
    let height = area.height.min(HELP.len() as u16 + 2);
    let place = Rect::new(
        area.x + (area.width - width) / 2,
        area.y + (area.height - height) / 2,
        width,
        height,
    );
    frame.render_widget(Clear, place);
    let lines: Vec<Line<'_>> = HELP.iter().map(|line| Line::from(*line)).collect();
    frame.render_widget(
        Paragraph::new(lines).block(Block::bordered().title("keys")),
        place,
    );
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::rates::Meter;
    use super::super::rows::tests::recorded;
    use super::*;

    fn table() -> Table {
        let (before, after) = recorded();
        let start = Instant::now();
        let mut meter = Meter::default();
        let _ = meter.note(&before, start);
        let rates = meter.note(&after, start + Duration::from_secs(2));
        Table::of(&after, rates.as_ref())
    }

    /// The screen's lines, without spaces at their ends.
    fn screen(width: u16, height: u16, choice: Choice, trouble: Option<&str>) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let table = table();
        terminal
            .draw(|frame| draw(frame, &table, choice, trouble))
            .unwrap();
        let buffer = terminal.backend().buffer();
        let lines = buffer.content.chunks(usize::from(width)).map(|cells| {
            let line: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
            line.trim_end().to_owned()
        });
        lines.collect()
    }

    #[test]
    fn a_recorded_status_on_a_usual_terminal() {
        let lines = screen(100, 24, Choice::default(), None);
        assert_eq!(lines[0], "edge  fairlead 0.1.0  ok, up 12 s");
        assert_eq!(lines[1], "fast path: tc on eth0, eth1");
        let all = lines.join("\n");
        for text in [
            "SYN/s 50.0",
            "connections/s 45.0",
            "packets/s 5000",
            "fast path 90.0 %",
            "in setup 4",
            "tcb cache hits 75.0 %",
            "10.2.0.1:81",
            "down",
            "not-ours",
            "q quit",
        ] {
            assert!(all.contains(text), "{text} is not in\n{all}");
        }
    }

    #[test]
    fn a_narrow_and_a_tiny_terminal_show_what_fits() {
        let lines = screen(40, 24, Choice::default(), None);
        let all = lines.join("\n");
        assert!(all.contains("10.2.0.1:81") && all.contains("40.0"), "{all}");
        assert!(!all.contains("failed/s"), "{all}");
        for (width, height) in [(1, 1), (2, 3), (10, 2), (300, 1), (5, 80)] {
            let help = Choice {
                shows_help: true,
                ..Choice::default()
            };
            assert_eq!(screen(width, height, help, None).len(), usize::from(height));
        }
    }

    #[test]
    fn errors_help_and_pause_are_shown() {
        let choice = Choice {
            is_paused: true,
            shows_help: true,
            ..Choice::default()
        };
        let lines = screen(100, 24, choice, Some("no answer from 127.0.0.1:9090"));
        assert_eq!(lines[0], "no answer from 127.0.0.1:9090");
        let all = lines.join("\n");
        assert!(
            all.contains("paused") && all.contains("scroll servers"),
            "{all}"
        );
    }
}
