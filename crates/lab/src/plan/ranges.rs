//! Ranges: a key whose value is a list stands for one run with each of its values.

use toml::{Table, Value};

/// The most combinations that one table may stand for.
pub const COMBINATIONS_MAX: usize = 100_000;

/// All tables that `table` stands for: one for each combination of the values of its lists, keys
/// late in the alphabet changing fastest. Tables inside are looked through as well. A list of
/// which no range is meant is named in `lists`.
///
/// # Errors
/// An empty list; more combinations than [`COMBINATIONS_MAX`].
pub fn combinations(table: &Table, lists: &[&str]) -> Result<Vec<Table>, String> {
    let mut all = vec![Table::new()];
    for (key, value) in table {
        let values: Vec<Value> = match value {
            Value::Array(values) if !lists.contains(&key.as_str()) => {
                if values.is_empty() {
                    return Err(format!("{key} = []: write at least one value"));
                }
                values.clone()
            }
            Value::Table(inner) => match steps(key, inner)? {
                Some(values) => values,
                None => combinations(inner, lists)?
                    .into_iter()
                    .map(Value::Table)
                    .collect(),
            },
            other => vec![other.clone()],
        };
        if all.len().saturating_mul(values.len()) > COMBINATIONS_MAX {
            return Err(format!(
                "{key}: more than {COMBINATIONS_MAX} combinations; split the plan"
            ));
        }
        all = all
            .iter()
            .flat_map(|before| {
                values.iter().map(move |value| {
                    let mut with = before.clone();
                    with.insert(key.clone(), value.clone());
                    with
                })
            })
            .collect();
    }
    Ok(all)
}

/// The values of `{ from = 1, to = 8, step = 1 }` or `{ from = 1, to = 8, times = 2 }`; `None` for
/// another table.
fn steps(key: &str, table: &Table) -> Result<Option<Vec<Value>>, String> {
    let (Some(from), Some(to)) = (table.get("from"), table.get("to")) else {
        return Ok(None);
    };
    let whole = |value: &Value| value.as_integer();
    let (Some(from), Some(to)) = (whole(from), whole(to)) else {
        return Err(format!("{key}: from and to are whole numbers"));
    };
    let step = table.get("step").and_then(whole);
    let times = table.get("times").and_then(whole);
    let next = |value: i64| match (step, times) {
        (Some(step), None) if step > 0 => value.checked_add(step),
        (None, Some(times)) if times > 1 && value > 0 => value.checked_mul(times),
        _ => None,
    };
    if from > to || next(from).is_none() || table.len() != 3 {
        return Err(format!(
            "{key}: write {{ from = 1, to = 8, step = 1 }} or {{ from = 1, to = 8, times = 2 }}"
        ));
    }
    let mut values = Vec::new();
    let mut value = from;
    while value <= to {
        if values.len() >= COMBINATIONS_MAX {
            return Err(format!("{key}: more than {COMBINATIONS_MAX} values"));
        }
        values.push(Value::Integer(value));
        match next(value) {
            Some(after) => value = after,
            None => break,
        }
    }
    Ok(Some(values))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Result<Vec<String>, String> {
        let table: Table = text.parse().unwrap();
        let tables = combinations(&table, &["kept"])?;
        Ok(tables
            .iter()
            .map(|table| toml::to_string(table).unwrap().replace('\n', ";"))
            .collect())
    }

    #[test]
    fn lists_and_steps_stand_for_their_values() {
        let tables = all("a = [1, 2]\nb = \"x\"\nc = { from = 1, to = 8, times = 2 }\n").unwrap();
        assert_eq!(tables.len(), 8);
        assert_eq!(tables[0], "a = 1;b = \"x\";c = 1;");
        assert_eq!(tables[7], "a = 2;b = \"x\";c = 8;");
        let tables = all("a = { from = 1, to = 6, step = 2 }").unwrap();
        assert_eq!(tables, ["a = 1;", "a = 3;", "a = 5;"]);
    }

    #[test]
    fn inner_tables_are_looked_through_and_named_lists_are_kept() {
        let tables = all("kept = [1, 2]\n[inner]\nx = [1, 2]\n").unwrap();
        assert_eq!(tables.len(), 2);
        assert!(tables[1].contains("kept = [1, 2]") && tables[1].contains("x = 2"));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for text in [
            "a = []",
            "a = { from = 2, to = 1, step = 1 }",
            "a = { from = 1, to = 2 }",
            "a = { from = 1, to = 2, step = 0 }",
            "a = { from = 0, to = 2, times = 2 }",
            "a = { from = 1, to = 9000000000000000000, step = 1 }",
        ] {
            assert!(all(text).is_err(), "{text}");
        }
        let wide = (0..21)
            .map(|key| format!("k{key} = [1, 2]\n"))
            .collect::<String>();
        assert!(all(&wide).unwrap_err().contains("split"));
    }
}
