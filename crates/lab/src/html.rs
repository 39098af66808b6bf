//! Pages of HTML that need no other file: what their writers have in common.

use crate::table::Table;

/// Common to pages of tables and drawings.
const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;\
padding:0 1rem;color:#1d2733}table{border-collapse:collapse;margin:1rem 0;font-size:13px}\
th,td{border-bottom:1px solid #d8dee6;padding:.25rem .6rem;text-align:left;vertical-align:top}\
svg{width:100%;font:11px system-ui,sans-serif}";

/// Text in HTML.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// A table.
pub(crate) fn table(table: &Table) -> String {
    let row = |tag: &str, cells: &[String]| {
        let cells = cells.iter();
        let cells = cells.map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell)));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let rows: String = table.rows.iter().map(|cells| row("td", cells)).collect();
    format!("<table>\n{}{rows}</table>\n", row("th", &table.heads))
}

/// A page with this title, rules of style besides the common ones, and body.
pub(crate) fn page(title: &str, style: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width\">\n<title>{}</title>\n<style>{STYLE}{style}</style>\n\
         {body}<p>fairlead-lab {}</p>\n</html>\n",
        escaped(title),
        env!("CARGO_PKG_VERSION")
    )
}
