//! Charts as SVG documents.

use super::{Chart, ChartError, Scale};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

/// Size in pixels: two charts beside each other fit a page.
const SIZE: (u32, u32) = (720, 440);

/// Colours that stay apart for the colour-blind (Okabe and Ito).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

pub(super) fn draw(chart: &Chart) -> Result<String, ChartError> {
    let [(x0, x1), (y0, y1)] = chart.ranges()?;
    // Room above the highest line.
    let up = y0..y1 * 1.05;
    let mut document = String::new();
    {
        let area = SVGBackend::with_string(&mut document, SIZE).into_drawing_area();
        let drawn = match chart.across.scale {
            Scale::Linear => draw_on(chart, &area, x0..x1, up),
            Scale::Logarithmic => draw_on(chart, &area, (x0..x1).log_scale(), up),
        };
        drawn
            .and_then(|()| area.present())
            .map_err(|e| ChartError::Drawing {
                name: chart.name,
                detail: e.to_string(),
            })?;
    }
    Ok(document)
}

fn draw_on<'a, X>(
    chart: &Chart,
    area: &Area<'a>,
    across: X,
    up: std::ops::Range<f64>,
) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    area.fill(&WHITE)?;
    let mut context = ChartBuilder::on(area)
        .caption(&chart.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(56)
        .build_cartesian_2d(across, up)?;
    context
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(&chart.across.label)
        .y_desc(&chart.up)
        .draw()?;
    for (line, colour) in chart.lines.iter().zip(COLOURS.iter().cycle()) {
        let style = colour.stroke_width(2);
        context
            .draw_series(LineSeries::new(chart.drawn(line), style))?
            .label(&line.label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    context
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()
}
