//! Draws dashboards: the panels of the shipped JSON, with the results of their queries.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow, ensure};
use plotters::coord::Shift;
use plotters::prelude::*;
use serde_json::Value;

/// The width of a dashboard's column. Unit: pixels; a dashboard has 24 columns.
const COLUMN: u32 = 50;
/// The height of a dashboard's row. Unit: pixels.
const ROW: u32 = 30;
/// The height of the title.
const TITLE: u32 = 40;
const COLOURS: [RGBColor; 8] = [
    RGBColor(31, 119, 180),
    RGBColor(255, 127, 14),
    RGBColor(44, 160, 44),
    RGBColor(214, 39, 40),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(227, 119, 194),
    RGBColor(127, 127, 127),
];

/// One line of a panel.
#[derive(Debug)]
pub struct Line {
    legend: String,
    /// Seconds since the first moment of the picture, and values.
    points: Vec<(f64, f64)>,
}

impl Line {
    /// Reads the results of a range query, named as a panel's target says.
    pub fn read(results: &Value, legend: &str, begin: f64) -> Result<Vec<Self>> {
        let results = results.as_array().context("no results")?;
        results
            .iter()
            .map(|result| {
                let mut name = legend.to_owned();
                for (label, value) in result["metric"].as_object().into_iter().flatten() {
                    let value = value.as_str().unwrap_or_default();
                    name = name.replace(&format!("{{{{{label}}}}}"), value);
                }
                let points = result["values"].as_array().context("no values")?.iter();
                let points = points.map(|point| {
                    let time = point[0].as_f64().context("no time")?;
                    let value: f64 = point[1].as_str().context("no value")?.parse()?;
                    Ok((time - begin, value))
                });
                let points: Vec<_> = points.collect::<Result<_>>()?;
                Ok(Self {
                    legend: name,
                    points: points.into_iter().filter(|(_, v)| v.is_finite()).collect(),
                })
            })
            .collect()
    }
}

/// Draws a dashboard into an SVG file. `lines` returns what a panel shows; `note` says where the results come from.
pub fn draw(
    file: &Path,
    dashboard: &Value,
    note: &str,
    seconds: f64,
    lines: impl Fn(&Value) -> Result<Vec<Line>>,
) -> Result<()> {
    let panels = dashboard["panels"].as_array().context("no panels")?;
    let place = |panel: &Value, key: &str| -> Result<u32> {
        let number = panel["gridPos"][key].as_u64().context("no place")?;
        Ok(u32::try_from(number)?)
    };
    let mut rows = 0;
    for panel in panels {
        rows = rows.max(place(panel, "y")? + place(panel, "h")?);
    }
    let area = SVGBackend::new(file, (24 * COLUMN, TITLE + rows * ROW)).into_drawing_area();
    area.fill(&WHITE).map_err(wrong)?;
    let title = format!(
        "{} ({note})",
        dashboard["title"].as_str().unwrap_or_default()
    );
    let area = area.titled(&title, ("sans-serif", 20)).map_err(wrong)?;
    for panel in panels {
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| place(panel, key));
        let at = (x? * COLUMN, y? * ROW);
        let part = area.clone().shrink(at, (w? * COLUMN, h? * ROW));
        let lines = lines(panel)?;
        let is_drawn = lines.iter().any(|line| !line.points.is_empty());
        ensure!(is_drawn, "{} shows nothing", panel["title"]);
        draw_panel(&part, panel, &lines, seconds)?;
    }
    area.present().map_err(wrong)
}

fn draw_panel(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    panel: &Value,
    lines: &[Line],
    seconds: f64,
) -> Result<()> {
    let all = lines.iter().flat_map(|line| &line.points);
    let most = all.map(|(_, value)| *value).fold(0.0, f64::max);
    let unit = panel["fieldConfig"]["defaults"]["unit"].as_str();
    let digits = match most {
        10.0.. => 0,
        1.0.. => 1,
        _ => 3,
    };
    let shown = |value: f64| match unit {
        Some("bytes") => format!("{:.0} MB", value / 1e6),
        Some("s") => format!("{value:.digits$} s"),
        Some("reqps") => format!("{value:.digits$}/s"),
        _ => format!("{value:.digits$}"),
    };
    let mut chart = ChartBuilder::on(area)
        .caption(
            panel["title"].as_str().unwrap_or_default(),
            ("sans-serif", 15),
        )
        .margin(8)
        .x_label_area_size(20)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..seconds, 0.0..(most * 1.4).max(0.01))
        .map_err(wrong)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .y_labels(5)
        .x_label_formatter(&|seconds| format!("{seconds:.0} s"))
        .y_label_formatter(&|value| shown(*value))
        .draw()
        .map_err(wrong)?;
    for (line, colour) in lines.iter().zip(COLOURS.into_iter().cycle()) {
        chart
            .draw_series(LineSeries::new(
                line.points.iter().copied(),
                colour.stroke_width(2),
            ))
            .map_err(wrong)?
            .label(&line.legend)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], colour.stroke_width(2)));
    }
    // More names would hide the lines.
    if lines.len() <= COLOURS.len() {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.7))
            .label_font(("sans-serif", 11))
            .draw()
            .map_err(wrong)?;
    }
    Ok(())
}

/// The errors of the drawing library borrow what is drawn on.
fn wrong(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("{error}")
}
