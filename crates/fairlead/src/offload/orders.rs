//! `fairlead handoff … --card`: connections on a card.

use fairlead_card::orders::{Order, ask, orders_at};
use serde_json::Value;

use crate::handoff::command::until_given;
use crate::screen::Side::{Left, Right};
use crate::screen::columns;

fn rows(list: &Value) -> &[Value] {
    list["connections"].as_array().map_or(&[], Vec::as_slice)
}

/// Lists connections.
pub(crate) fn list(card: &str, json: bool) -> Result<String, String> {
    let list = ask(&orders_at(card), Order::List)?;
    if json {
        return Ok(format!("{list:#}\n"));
    }
    let fields = [
        ("number", Right),
        ("process", Right),
        ("program", Left),
        ("seconds", Right),
        ("idle_seconds", Right),
        ("bytes_in", Right),
        ("bytes_out", Right),
        ("peer", Left),
        ("local", Left),
    ];
    let head = fields.map(|(name, _)| name.replace('_', " "));
    let shown = |row: &Value| -> Vec<String> {
        let text = |value: &Value| match value.as_str() {
            Some(text) => text.to_owned(),
            None => value.to_string(),
        };
        fields.iter().map(|(name, _)| text(&row[*name])).collect()
    };
    let mut all = vec![head.to_vec()];
    all.extend(rows(&list).iter().map(shown));
    let mut text = columns(0, &fields.map(|(_, side)| side), &all);
    let reasons = reasons(&list);
    if !reasons.is_empty() {
        text += "\nnot on the card\n";
        text += &columns(2, &[Left, Right, Left], &reasons);
    }
    Ok(text)
}

/// Why connections are not on the card: those that were counted.
fn reasons(list: &Value) -> Vec<Vec<String>> {
    let all = list["counts"]["not_on_the_card"].as_array();
    let counted = all.into_iter().flatten().filter(|one| one["count"] != 0);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    counted
        .map(|one| {
            let count = one["count"].to_string();
            vec![text(&one["reason"]), count, text(&one["meaning"])]
        })
        .collect()
}

/// What was given back may be handed off again.
pub(crate) fn take(card: &str) -> Result<String, String> {
    let answer = ask(&orders_at(card), Order::Take)?;
    match answer["asked"].as_u64() {
        Some(0) | None => Err("no program is connected".to_owned()),
        Some(1) => Ok("asked 1 program\n".to_owned()),
        Some(count) => Ok(format!("asked {count} programs\n")),
    }
}

/// Gives one connection back, or all.
pub(crate) fn give(card: &str, number: Option<u32>) -> Result<String, String> {
    let socket = orders_at(card);
    let number_of = |value: &Value| u32::try_from(value.as_u64()?).ok();
    let answer = ask(&socket, Order::Give(number))?;
    let asked = answer["asked"].as_array().map_or(&[][..], Vec::as_slice);
    let asked: Vec<u32> = asked.iter().filter_map(number_of).collect();
    until_given(&asked, || {
        let list = ask(&socket, Order::List)?;
        let numbers = rows(&list).iter();
        Ok(numbers
            .filter_map(|row| number_of(&row["number"]))
            .collect())
    })
}
