//! A plot of packet rates by packet size, as SVG.
//!
//! Promises: any number of series and sizes gives a well-formed drawing that explains itself
//! (title, axes with units, legend) on a light background. Sizes stand side by side at equal
//! distances, because those that matter (64, 128, …, 1518) are no equal distances apart. Called by
//! `sweep`, and by [`csv`] for what is in a file; opens none itself.

#![forbid(unsafe_code)]

pub mod csv;

use std::fmt::Write;
use svg::Document;
use svg::node::element::{Circle, Group, Line, Polyline, Rectangle, Text, Title};

/// One line of the plot.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Frame bytes without FCS, and millions of packets a second. A rate that is no finite
    /// number is left out.
    pub points: Vec<(usize, f64)>,
}

// The drawing's places, in SVG units; the plot area keeps its size, the legend widens the page.
const LEFT: f64 = 74.0;
const TOP: f64 = 56.0;
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const BOTTOM: f64 = 64.0;
const GAP: f64 = 24.0;
const LEGEND_LINE: f64 = 24.0;
const LEGEND_SAMPLE: f64 = 34.0;
/// A generous width of one letter at the legend's size.
const LETTER: f64 = 8.0;

/// Told apart by people who do not see all colours, too (Okabe and Ito, yellow left out); beyond
/// them, lines are dashed.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"];
const DASHES: [&str; 3] = ["none", "7 4", "2 3"];
const INK: &str = "#222222";
const GRID: &str = "#dddddd";

/// Draw `series` under `title`.
pub fn mpps_by_size(title: &str, series: &[Series]) -> String {
    let scale = Scale::of(series);
    let longest = series.iter().map(|s| s.name.chars().count()).max().unwrap_or(0);
    let legend = LEGEND_SAMPLE + LETTER * longest as f64;
    let width =
        (LEFT + WIDTH + GAP + legend).max(LEFT + LETTER * 1.3 * title.chars().count() as f64) + GAP;
    let legend_end = TOP + LEGEND_LINE * (series.len() + 1) as f64;
    let height = (TOP + HEIGHT + BOTTOM).max(legend_end);
    let mut document = Document::new()
        .set("viewBox", (0.0, 0.0, width, height))
        .set("width", width)
        .set("height", height)
        .set("font-family", "DejaVu Sans, Helvetica, Arial, sans-serif")
        .set("font-size", 13)
        .add(Title::new(title))
        .add(Rectangle::new().set("width", width).set("height", height).set("fill", "#ffffff"))
        .add(text(title, LEFT, TOP - 26.0, "start").set("font-size", 18))
        .add(scale.rates())
        .add(scale.sizes());
    for (i, one) in series.iter().enumerate() {
        document = document.add(scale.line(i, one)).add(legend_entry(i, &one.name));
    }
    document.to_string()
}

/// Where sizes and rates lie.
struct Scale {
    sizes: Vec<usize>,
    top: f64,
    step: f64,
}

impl Scale {
    fn of(series: &[Series]) -> Self {
        let points = || series.iter().flat_map(|s| finite(&s.points));
        let mut sizes: Vec<_> = points().map(|(size, _)| size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let most = points().map(|(_, mpps)| mpps).fold(0.0, f64::max);
        let step = nice_step(most);
        Scale { sizes, step, top: (most / step).ceil().max(1.0) * step }
    }

    fn x(&self, index: usize) -> f64 {
        LEFT + WIDTH * (index as f64 + 0.5) / self.sizes.len().max(1) as f64
    }

    fn y(&self, mpps: f64) -> f64 {
        TOP + HEIGHT * (1.0 - mpps.max(0.0) / self.top)
    }

    /// The vertical axis: a grid line and its number each step.
    fn rates(&self) -> Group {
        let mut group = Group::new();
        let decimals = (-self.step.log10().floor()).max(0.0) as usize;
        for i in 0..=(self.top / self.step).round() as usize {
            let mpps = i as f64 * self.step;
            let y = self.y(mpps);
            let grid = line(LEFT, y, LEFT + WIDTH, y, if i == 0 { INK } else { GRID });
            let label = text(&format!("{mpps:.decimals$}"), LEFT - 8.0, y + 4.5, "end");
            group = group.add(grid).add(label);
        }
        let middle = TOP + HEIGHT / 2.0;
        let name = text("Mpps", 18.0, middle, "middle");
        group.add(name.set("transform", format!("rotate(-90 18 {middle})")))
    }

    /// The horizontal axis. With many sizes the numbers stand on end.
    fn sizes(&self) -> Group {
        let mut group = Group::new();
        let (base, crowded) = (TOP + HEIGHT, self.sizes.len() > 12);
        for (i, size) in self.sizes.iter().enumerate() {
            let x = self.x(i);
            let mut label = text(&size.to_string(), x, base + 20.0, "middle");
            if crowded {
                let turn = format!("rotate(-60 {} {})", x + 4.0, base + 14.0);
                label = text(&size.to_string(), x + 4.0, base + 14.0, "end").set("transform", turn);
            }
            group = group.add(line(x, base, x, base + 5.0, INK)).add(label);
        }
        group.add(text("frame size, bytes without FCS", LEFT + WIDTH / 2.0, base + 48.0, "middle"))
    }

    fn line(&self, index: usize, series: &Series) -> Group {
        let mut points: Vec<_> = finite(&series.points).collect();
        points.sort_unstable_by_key(|&(size, _)| size);
        let mut group = Group::new().set("fill", colour(index));
        let mut path = String::new();
        for (size, mpps) in points {
            let place = self.sizes.partition_point(|&s| s < size);
            let (x, y) = (self.x(place), self.y(mpps));
            // Writing to a string cannot fail.
            let _ = write!(path, "{x:.1},{y:.1} ");
            let hint = Title::new(format!("{}: {size} bytes, {mpps:.2} Mpps", series.name));
            group = group.add(Circle::new().set("cx", x).set("cy", y).set("r", 3.5).add(hint));
        }
        group.add(stroke(Polyline::new().set("points", path.trim_end()), index))
    }
}

fn finite(points: &[(usize, f64)]) -> impl Iterator<Item = (usize, f64)> {
    points.iter().copied().filter(|(_, mpps)| mpps.is_finite())
}

/// The step of 1, 2 or 5 times a power of ten that gives 4 to 10 steps up to `most`.
fn nice_step(most: f64) -> f64 {
    if most <= 0.0 {
        return 1.0;
    }
    let rough = most / 8.0;
    let power = 10_f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= rough).unwrap_or(rough)
}

fn legend_entry(index: usize, name: &str) -> Group {
    let (x, y) = (LEFT + WIDTH + GAP, TOP + LEGEND_LINE * (index as f64 + 0.5));
    let points = format!("{x},{y} {},{y}", x + 24.0);
    let dot =
        Circle::new().set("cx", x + 12.0).set("cy", y).set("r", 3.5).set("fill", colour(index));
    Group::new().add(stroke(Polyline::new().set("points", points), index)).add(dot).add(text(
        name,
        x + LEGEND_SAMPLE,
        y + 4.5,
        "start",
    ))
}

fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

fn stroke(line: Polyline, index: usize) -> Polyline {
    line.set("fill", "none")
        .set("stroke", colour(index))
        .set("stroke-width", 2)
        .set("stroke-dasharray", DASHES[index / COLOURS.len() % DASHES.len()])
}

fn text(content: &str, x: f64, y: f64, anchor: &str) -> Text {
    Text::new(content).set("x", x).set("y", y).set("text-anchor", anchor).set("fill", INK)
}

fn line(x1: f64, y1: f64, x2: f64, y2: f64, colour: &str) -> Line {
    Line::new().set("x1", x1).set("y1", y1).set("x2", x2).set("y2", y2).set("stroke", colour)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str, points: &[(usize, f64)]) -> Series {
        Series { name: name.into(), points: points.to_vec() }
    }

    fn count(haystack: &str, needle: &str) -> usize {
        haystack.matches(needle).count()
    }

    #[test]
    fn every_point_is_drawn_and_every_series_named() {
        let drawing = mpps_by_size(
            "A & B",
            &[series("in < out", &[(64, 20.0), (1518, 8.0)]), series("out", &[(64, 10.0)])],
        );
        // A dot each point, and one each legend entry.
        assert_eq!(count(&drawing, "<circle"), 3 + 2);
        assert_eq!(count(&drawing, "<polyline"), 2 + 2);
        assert!(drawing.contains("in &lt; out") && drawing.contains("A &amp; B"), "{drawing}");
        assert!(!drawing.contains("NaN") && !drawing.contains("inf"));
    }

    #[test]
    fn nothing_and_nonsense_still_make_a_drawing() {
        for points in [&[][..], &[(64, f64::NAN)], &[(64, 0.0)], &[(64, f64::INFINITY)]] {
            let drawing = mpps_by_size("", &[series("x", points)]);
            assert!(drawing.starts_with("<svg") && drawing.ends_with("</svg>"), "{drawing}");
            assert!(!drawing.contains("NaN") && !drawing.contains("inf"), "{drawing}");
        }
        assert!(mpps_by_size("", &[]).ends_with("</svg>"));
    }

    #[test]
    fn higher_rates_are_drawn_higher_and_larger_sizes_to_the_right() {
        let scale = Scale::of(&[series("x", &[(1518, 5.0), (64, 21.7)])]);
        assert_eq!(scale.sizes, [64, 1518]);
        assert!(scale.x(0) < scale.x(1));
        assert!(scale.y(21.7) < scale.y(5.0));
        assert!(scale.y(21.7) >= TOP && (scale.y(0.0) - TOP - HEIGHT).abs() < 1e-9);
    }

    #[test]
    fn steps_are_round_and_few() {
        for most in [0.003, 0.45, 1.0, 7.7, 21.7, 34.0, 99.0, 140.0] {
            let step = nice_step(most);
            let steps = (most / step).ceil();
            assert!((4.0..=8.0).contains(&steps), "{most}: {step}");
        }
    }
}
