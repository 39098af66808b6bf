//! Curves as SVG, for a page that needs nothing else.

use std::fmt::Write;

use crate::html::escaped;

/// A curve: its name and points.
pub(super) type Curve = (String, Vec<(f64, f64)>);

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
/// Space for what is written at the axes: left, right, top, bottom.
const MARGINS: [f64; 4] = [56.0, 190.0, 12.0, 44.0];
const COLOURS: [&str; 8] = [
    "#1b6ca8", "#d1495b", "#2e8b57", "#8a5fbf", "#c98a1b", "#3a8f9e", "#7a6c5d", "#b0558f",
];

/// Curves over a logarithmic axis; y begins at 0. Points that are not finite are left out.
pub(super) fn curves(label: &str, x_name: &str, y_name: &str, curves: &[Curve]) -> String {
    let points = || curves.iter().flat_map(|(_, points)| points);
    let mut xs: Vec<f64> = points().map(|(x, _)| *x).filter(|x| *x > 0.0).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let (Some(first), Some(last)) = (xs.first(), xs.last()) else {
        return String::new();
    };
    let top = points().map(|(_, y)| *y).filter(|y| y.is_finite());
    let top = top.fold(0.0, f64::max).max(1e-9) * 1.05;
    let span = (last / first).log2().max(1e-9);
    let [left, right, above, below] = MARGINS;
    let at_x = |x: f64| left + (x / first).log2() / span * (WIDTH - left - right);
    let at_y = |y: f64| HEIGHT - below - y / top * (HEIGHT - above - below);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
        escaped(label)
    );
    axes(&mut svg, &xs, top, &at_x, &at_y);
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" class=\"name\">{}</text>\n<text x=\"4\" y=\"10\" \
         class=\"name\">{}</text>",
        left,
        HEIGHT - 6.0,
        escaped(x_name),
        escaped(y_name)
    );
    for (at, (name, points)) in curves.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let dash = if at < COLOURS.len() { "none" } else { "5 3" };
        let drawn = points.iter().filter(|(x, y)| *x > 0.0 && y.is_finite());
        let line: Vec<String> = drawn
            .map(|(x, y)| format!("{:.1},{:.1}", at_x(*x), at_y(*y)))
            .collect();
        let y = above + 14.0 * (at as f64 + 1.0);
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" \
             stroke-dasharray=\"{dash}\"/>\n<text x=\"{:.1}\" y=\"{y:.1}\" fill=\"{colour}\">\
             {}</text>",
            line.join(" "),
            WIDTH - right + 10.0,
            escaped(name)
        );
    }
    svg + "</svg>\n"
}

fn axes(
    svg: &mut String,
    xs: &[f64],
    top: f64,
    at_x: &dyn Fn(f64) -> f64,
    at_y: &dyn Fn(f64) -> f64,
) {
    let [left, right, _, below] = MARGINS;
    for step in 0..=4 {
        let value = top / 1.05 * f64::from(step) / 4.0;
        let y = at_y(value);
        let _ = writeln!(
            svg,
            "<line x1=\"{left}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#d8dee6\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - right,
            left - 6.0,
            y + 4.0,
            short(value)
        );
    }
    for x in xs {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            at_x(*x),
            HEIGHT - below + 16.0,
            short(*x)
        );
    }
}

/// A number in few digits, with K for 1024 where that is exact.
fn short(value: f64) -> String {
    if value >= 1024.0 && (value % 1024.0).abs() < 1e-9 {
        return format!("{}K", value / 1024.0);
    }
    match value {
        value if value >= 100.0 || value.fract().abs() < 1e-9 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_end_at_their_largest_value_and_text_is_escaped() {
        let data = [("a <b>".to_owned(), vec![(1.0, 0.0), (4.0, 2.0), (0.0, 9.0)])];
        let svg = curves("label", "x", "y", &data);
        assert!(svg.contains("a &lt;b&gt;") && !svg.contains("<b>"));
        let points = svg.split("points=\"").nth(1).unwrap();
        assert!(points.starts_with("56.0,256.0 "), "{points}");
        assert!(points.split('"').next().unwrap().split(' ').count() == 2);
        assert_eq!(curves("nothing", "x", "y", &[]), "");
        assert_eq!(
            (short(65_536.0), short(0.5)),
            ("64K".to_owned(), "0.50".to_owned())
        );
    }
}
