//! Line charts, for the terminal and as SVG.
//!
//! | file | holds |
//! |---|---|
//! | [`svg`] | a chart as an SVG document |
//! | [`terminal`] | a chart in characters |

mod svg;
mod terminal;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

/// A chart of some lines over the same axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// What it is called in file names: lower case, hyphens.
    pub name: &'static str,
    /// What it shows.
    pub title: String,
    /// What lies along the horizontal axis, with its unit.
    pub across: Axis,
    /// What lies along the vertical axis, with its unit; it begins at zero.
    pub up: String,
    /// The lines, the most important first.
    pub lines: Vec<Line>,
}

/// An axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// What it measures, with its unit.
    pub label: String,
    /// How lengths along it grow.
    pub scale: Scale,
}

/// How lengths along an axis grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// In proportion; the axis includes zero.
    Linear,
    /// With the logarithm; values of zero or less are left out.
    Logarithmic,
}

/// A line through points.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// What it stands for.
    pub label: String,
    /// Its points from left to right.
    pub points: Vec<(f64, f64)>,
}

/// Why no SVG was written.
#[derive(Debug, thiserror::Error)]
pub enum ChartError {
    /// The chart has no two points that can be drawn.
    #[error("chart {0} has nothing to draw: it needs two points that differ")]
    Empty(&'static str),
    /// The drawing library gave up.
    #[error("chart {name} cannot be drawn: {detail}")]
    Drawing {
        /// Which chart.
        name: &'static str,
        /// Why.
        detail: String,
    },
    /// A file cannot be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl Axis {
    /// An axis in proportion.
    pub fn linear(label: impl Into<String>) -> Self {
        Self {
            label: label.into(),
            scale: Scale::Linear,
        }
    }

    /// An axis of logarithms.
    pub fn logarithmic(label: impl Into<String>) -> Self {
        Self {
            label: label.into(),
            scale: Scale::Logarithmic,
        }
    }
}

impl Scale {
    fn takes(self, value: f64) -> bool {
        value.is_finite() && (self == Self::Linear || value > 0.0)
    }

    /// First and last value of an axis; none when the values are all one.
    fn range(self, values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
        let zero = (self == Self::Linear).then_some(0.0);
        let bounds = values
            .chain(zero)
            .map(|v| (v, v))
            .reduce(|(a, b), (v, _)| (a.min(v), b.max(v)))?;
        (bounds.0 < bounds.1).then_some(bounds)
    }
}

impl Chart {
    /// The points of a line that both axes take.
    fn drawn<'a>(&'a self, line: &'a Line) -> impl Iterator<Item = (f64, f64)> + 'a {
        let drawable = |(x, y): &(f64, f64)| self.across.scale.takes(*x) && Scale::Linear.takes(*y);
        line.points.iter().copied().filter(drawable)
    }

    fn ranges(&self) -> Result<[(f64, f64); 2], ChartError> {
        let points = || self.lines.iter().flat_map(|line| self.drawn(line));
        let across = self.across.scale.range(points().map(|(x, _)| x));
        let up = Scale::Linear.range(points().map(|(_, y)| y));
        match (across, up) {
            (Some(across), Some(up)) => Ok([across, up]),
            _ => Err(ChartError::Empty(self.name)),
        }
    }

    /// The chart as an SVG document.
    pub fn svg(&self) -> Result<String, ChartError> {
        svg::draw(self)
    }

    /// The chart in characters; empty when there is nothing to draw.
    pub fn terminal(&self) -> Vec<String> {
        terminal::draw(self)
    }
}

/// Writes charts as SVG. `path` is a folder, which gets one `NAME.svg` a chart, or ends in `.svg`: then it is the file of
/// a single chart, and `STEM-NAME.svg` beside it are those of several. Returns what was written.
pub fn write_svg(path: &Path, charts: &[Chart]) -> Result<Vec<PathBuf>, ChartError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| ChartError::Write { path, source }
    };
    let is_file = path
        .extension()
        .is_some_and(|end| end.eq_ignore_ascii_case("svg"));
    let stem = path.with_extension("");
    if !is_file {
        std::fs::create_dir_all(path).map_err(failed(path))?;
    }
    let place = |chart: &Chart| match (is_file, charts.len()) {
        (true, 1) => path.to_owned(),
        (true, _) => PathBuf::from(format!("{}-{}.svg", stem.display(), chart.name)),
        (false, _) => path.join(format!("{}.svg", chart.name)),
    };
    let mut written = Vec::new();
    for chart in charts {
        let file = place(chart);
        std::fs::write(&file, chart.svg()?).map_err(failed(&file))?;
        written.push(file);
    }
    Ok(written)
}
