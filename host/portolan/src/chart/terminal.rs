//! Charts in characters.

use super::{Chart, Line, Scale};

/// Columns and rows of the field that lines are drawn in: with the axis it fits a terminal of 80 columns.
const COLUMNS: usize = 64;
const ROWS: usize = 14;

/// Marks of the lines, in their order.
const MARKS: [char; 6] = ['*', 'o', '+', 'x', '#', '@'];

pub(super) fn draw(chart: &Chart) -> Vec<String> {
    let Ok([across, up]) = chart.ranges() else {
        return Vec::new();
    };
    let mut field = vec![[' '; COLUMNS]; ROWS];
    // The first line is drawn last, over the others.
    for (line, mark) in chart
        .lines
        .iter()
        .zip(MARKS.iter().cycle())
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
    {
        mark_line(chart, line, *mark, (across, up), &mut field);
    }
    let mut out = vec![chart.title.clone()];
    for (row, cells) in field.iter().enumerate() {
        let label = match row {
            0 => number(up.1),
            r if r == ROWS / 2 => number(Scale::Linear.value(0.5, up)),
            r if r == ROWS - 1 => number(up.0),
            _ => String::new(),
        };
        let cells: String = cells.iter().collect();
        out.push(format!("{label:>8} |{}", cells.trim_end()));
    }
    out.push(format!("{:>8} +{}", "", "-".repeat(COLUMNS)));
    let middle = number(chart.across.scale.value(0.5, across));
    let (first, last) = (number(across.0), number(across.1));
    let half = COLUMNS / 2;
    out.push(format!(
        "{:>8}  {first:<width$}{middle:^16}{last:>rest$}",
        "",
        width = half - 8,
        rest = half - 8
    ));
    let legend = chart.lines.iter().zip(MARKS.iter().cycle());
    let legend: Vec<_> = legend
        .map(|(line, mark)| format!("{mark} {}", line.label))
        .collect();
    out.push(format!(
        "{:>8}  {} against {}: {}",
        "",
        chart.up,
        chart.across.label,
        legend.join(", ")
    ));
    out
}

type Range = (f64, f64);

/// Marks every column that the line passes at its height there.
fn mark_line(
    chart: &Chart,
    line: &Line,
    mark: char,
    (across, up): (Range, Range),
    field: &mut [[char; COLUMNS]],
) {
    let points: Vec<_> = chart
        .drawn(line)
        .map(|(x, y)| (chart.across.scale.place(x, across), Scale::Linear.place(y, up)))
        .collect();
    for column in 0..COLUMNS {
        let at = column as f64 / (COLUMNS - 1) as f64;
        let Some(height) = height_at(&points, at) else {
            continue;
        };
        let row = ((1.0 - height) * (ROWS - 1) as f64).round() as usize;
        if let Some(cells) = field.get_mut(row) {
            cells[column] = mark;
        }
    }
}

/// The height of a line through points at a place along the axis; none beside its ends.
fn height_at(points: &[(f64, f64)], at: f64) -> Option<f64> {
    // A point that rounding put just beside a column is in it.
    const CLOSE: f64 = 1e-9;
    points.windows(2).find_map(|pair| {
        let [(x0, y0), (x1, y1)] = [pair[0], pair[1]];
        let within = (x0 - CLOSE..=x1 + CLOSE).contains(&at);
        let part = if x1 > x0 { (at - x0) / (x1 - x0) } else { 0.0 };
        within.then_some(y0 + (y1 - y0) * part.clamp(0.0, 1.0))
    })
}

impl Scale {
    /// Where on the axis a value lies, 0 to 1.
    fn place(self, value: f64, (from, to): Range) -> f64 {
        match self {
            Self::Linear => (value - from) / (to - from),
            Self::Logarithmic => (value / from).ln() / (to / from).ln(),
        }
    }

    /// The value at a place.
    fn value(self, place: f64, (from, to): Range) -> f64 {
        match self {
            Self::Linear => from + (to - from) * place,
            Self::Logarithmic => from * (to / from).powf(place),
        }
    }
}

/// A number in at most seven characters.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        v if v < 10.0 => format!("{value:.2}"),
        v if v < 1000.0 => format!("{value:.1}"),
        v if v < 1e7 => format!("{value:.0}"),
        _ => format!("{value:.1e}"),
    }
}
