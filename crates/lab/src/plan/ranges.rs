//! Ranges: a key with a list means one run with each of its values.

use toml::{Table, Value};

/// The most combinations that one table may stand for.
pub const COMBINATIONS_MAX: usize = 100_000;

/// Expands `table` to one table per combination of the values of its lists, with the alphabetically
/// last keys changing fastest. Nested tables are expanded, too. Keys in `lists` take a list as
/// value.
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

/// What to write.
const HOW: &str = "write { from = 1, to = 8, step = 1 } or { from = 1, to = 8, times = 2 }";

/// The values of `{ from = 1, to = 8, step = 1 }` or `{ from = 1, to = 8, times = 2 }`; `None` for
/// another table. Whole numbers where all three are, else with fractions.
pub(super) fn steps(key: &str, table: &Table) -> Result<Option<Vec<Value>>, String> {
    let (Some(from), Some(to)) = (table.get("from"), table.get("to")) else {
        return Ok(None);
    };
    let by = match (table.get("step"), table.get("times")) {
        (Some(step), None) if table.len() == 3 => By::Step(step),
        (None, Some(times)) if table.len() == 3 => By::Times(times),
        _ => return Err(format!("{key}: {HOW}")),
    };
    let values = match (from.as_integer(), to.as_integer(), by.value().as_integer()) {
        (Some(from), Some(to), Some(width)) => whole(from, to, width, &by),
        _ => fractions(from, to, &by),
    };
    match values {
        Some(values) if values.len() > COMBINATIONS_MAX => {
            Err(format!("{key}: more than {COMBINATIONS_MAX} values"))
        }
        Some(values) if !values.is_empty() => Ok(Some(values)),
        _ => Err(format!("{key}: {HOW}")),
    }
}

/// How one value comes from the one before.
enum By<'a> {
    Step(&'a Value),
    Times(&'a Value),
}

impl By<'_> {
    fn value(&self) -> &Value {
        match self {
            Self::Step(value) | Self::Times(value) => value,
        }
    }
}

/// At most one more than there may be; `None` where the values would not grow.
fn whole(from: i64, to: i64, width: i64, by: &By<'_>) -> Option<Vec<Value>> {
    let next = |value: i64| match by {
        By::Step(_) => value.checked_add(width),
        By::Times(_) => value.checked_mul(width),
    };
    let grows = match by {
        By::Step(_) => width > 0,
        By::Times(_) => width > 1 && from > 0,
    };
    let values = std::iter::successors(Some(from), |value| next(*value));
    let values = values.take_while(|value| *value <= to);
    grows.then(|| {
        values
            .take(COMBINATIONS_MAX + 1)
            .map(Value::Integer)
            .collect()
    })
}

/// As [`whole`], for numbers of which one has a fraction. Each is worked out from the first, and
/// told to twelve digits: 0.1 and twice 0.1 are 0.3, and 0.3 is not beyond 0.3.
fn fractions(from: &Value, to: &Value, by: &By<'_>) -> Option<Vec<Value>> {
    let number = |value: &Value| {
        let whole = value.as_integer().map(|number| number as f64);
        value
            .as_float()
            .or(whole)
            .filter(|number| number.is_finite())
    };
    let (from, to, width) = (number(from)?, number(to)?, number(by.value())?);
    let at = |count: i32| match by {
        By::Step(_) => from + f64::from(count) * width,
        By::Times(_) => from * width.powi(count),
    };
    let grows = match by {
        By::Step(_) => width > 0.0,
        By::Times(_) => width > 1.0 && from > 0.0,
    };
    let values = (0..=COMBINATIONS_MAX as i32).map(|count| told(at(count)));
    let values = values.take_while(|value| *value <= told(to));
    grows.then(|| values.map(Value::Float).collect())
}

/// To twelve digits.
fn told(value: f64) -> f64 {
    format!("{value:.11e}").parse().unwrap_or(value)
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
    fn steps_may_have_fractions() {
        let tables = all("a = { from = 0.1, to = 0.3, step = 0.1 }").unwrap();
        assert_eq!(tables, ["a = 0.1;", "a = 0.2;", "a = 0.3;"]);
        let tables = all("a = { from = 1, to = 4, times = 1.5 }").unwrap();
        assert_eq!(tables, ["a = 1.0;", "a = 1.5;", "a = 2.25;", "a = 3.375;"]);
        let tables = all("a = { from = 1.5, to = 6, times = 2 }").unwrap();
        assert_eq!(tables, ["a = 1.5;", "a = 3.0;", "a = 6.0;"]);
    }

    #[test]
    fn inner_tables_are_looked_through_and_named_lists_are_kept() {
        let tables = all("kept = [1, 2]\n[inner]\nx = [1, 2]\n").unwrap();
        assert_eq!(tables.len(), 2);
        assert!(tables[1].contains("kept = [1, 2]") && tables[1].contains("x = 2"));
    }

    #[test]
    fn invalid_ranges_are_refused() {
        for text in [
            "a = []",
            "a = { from = 2, to = 1, step = 1 }",
            "a = { from = 1, to = 2 }",
            "a = { from = 1, to = 2, step = 0 }",
            "a = { from = 0, to = 2, times = 2 }",
            "a = { from = 1, to = 9000000000000000000, step = 1 }",
            "a = { from = 0.0, to = 2, times = 2 }",
            "a = { from = 1, to = 2, times = 1.0 }",
            "a = { from = 1, to = inf, step = 0.5 }",
            "a = { from = 1, to = 1e9, step = 0.5 }",
            "a = { from = 1, to = 2, step = \"1\" }",
            "a = { from = 1, to = 2, step = 1, times = 2 }",
        ] {
            assert!(all(text).is_err(), "{text}");
        }
        let wide = (0..21)
            .map(|key| format!("k{key} = [1, 2]\n"))
            .collect::<String>();
        assert!(all(&wide).unwrap_err().contains("split"));
    }
}
