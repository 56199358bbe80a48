//! `ringbridge plot`: a CSV file becomes a drawing.
//!
//! Promises: the first line names the columns, `size` and `mpps` among them; each other line is a
//! point. Columns of text name the lines of the plot, by those in which the rows differ; what is
//! `on` or `off` gets its column's name. Columns of numbers beside the two are left out. A file
//! that is wrong is refused with its line, and nothing is written.

#![forbid(unsafe_code)]

use super::{Series, mpps_by_size};
use std::io;
use std::path::{Path, PathBuf};

const SIZE: &str = "size";
const RATE: &str = "mpps";

/// Everything `plot` needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlotArgs {
    /// The CSV file.
    pub input: PathBuf,
    /// The drawing.
    pub output: PathBuf,
}

/// Why there is no drawing.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    /// A file could not be used; what for, and which.
    #[error("cannot {0} {path}", path = .1.display())]
    File(&'static str, PathBuf, #[source] io::Error),
    /// The file does not say what to draw.
    #[error("cannot plot {}", .0.display())]
    Content(PathBuf, #[source] CsvError),
}

/// What is wrong in a file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CsvError {
    /// Not even names.
    #[error("it is empty; the first line names the columns, {SIZE} and {RATE} among them")]
    Empty,
    /// Names only.
    #[error("it has no rows below the names of its columns")]
    NoRows,
    /// What is drawn is not there.
    #[error("there is no column {missing}; there are {}", there.join(", "))]
    NoColumn {
        /// The name.
        missing: &'static str,
        /// All names.
        there: Vec<String>,
    },
    /// Not as many values as names.
    #[error("line {line} has {values} values, but there are {columns} columns")]
    Values {
        /// Counted from 1.
        line: usize,
        /// How many it has.
        values: usize,
        /// How many it should have.
        columns: usize,
    },
    /// A size or a rate that is none.
    #[error("line {line}: {column} is {value:?}; it must be {right}")]
    Number {
        /// Counted from 1.
        line: usize,
        /// Of the two.
        column: &'static str,
        /// What is there.
        value: String,
        /// What would be right.
        right: &'static str,
    },
}

/// Draw what is in the file.
///
/// # Errors
/// A file that cannot be read, understood or written.
pub fn run(args: &PlotArgs) -> Result<(), PlotError> {
    let file = |what, path: &Path| {
        let path = path.to_owned();
        move |error| PlotError::File(what, path, error)
    };
    let text = std::fs::read_to_string(&args.input).map_err(file("read", &args.input))?;
    let series = series(&text).map_err(|error| PlotError::Content(args.input.clone(), error))?;
    let drawing = mpps_by_size("Mpps by frame size", &series);
    std::fs::write(&args.output, drawing).map_err(file("write", &args.output))
}

/// A line of the file.
struct Row<'a> {
    number: usize,
    values: Vec<&'a str>,
}

fn series(text: &str) -> Result<Vec<Series>, CsvError> {
    let mut rows = text
        .lines()
        .enumerate()
        .map(|(i, line)| Row { number: i + 1, values: line.split(',').map(str::trim).collect() })
        .filter(|row| row.values != [""]);
    let names = rows.next().ok_or(CsvError::Empty)?.values;
    let rows: Vec<_> = rows.collect();
    let column = |missing| {
        let there = || names.iter().map(ToString::to_string).collect();
        let place = names.iter().position(|name| *name == missing);
        place.ok_or_else(|| CsvError::NoColumn { missing, there: there() })
    };
    let (size_column, rate_column) = (column(SIZE)?, column(RATE)?);
    for row in &rows {
        let (line, values, columns) = (row.number, row.values.len(), names.len());
        if values != columns {
            return Err(CsvError::Values { line, values, columns });
        }
    }
    let telling: Vec<_> = (0..names.len())
        .filter(|&c| c != size_column && c != rate_column && tells_apart(&rows, c))
        .collect();
    let mut series: Vec<Series> = Vec::new();
    for row in &rows {
        let point = (size(row, size_column)?, rate(row, rate_column)?);
        let name = name(row, &names, &telling);
        match series.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => series.push(Series { name, points: vec![point] }),
        }
    }
    if series.is_empty() { Err(CsvError::NoRows) } else { Ok(series) }
}

/// The column is of text, and its values differ.
fn tells_apart(rows: &[Row], column: usize) -> bool {
    let mut values = rows.iter().map(|row| row.values[column]);
    let text = values.clone().any(|value| !value.is_empty() && value.parse::<f64>().is_err());
    let first = values.next();
    text && values.any(|value| Some(value) != first)
}

fn name(row: &Row, names: &[&str], telling: &[usize]) -> String {
    let word = |&column: &usize| match row.values[column] {
        switch @ ("on" | "off") => format!("{} {switch}", names[column]),
        value => value.to_owned(),
    };
    let words: Vec<_> = telling.iter().map(word).filter(|word| !word.is_empty()).collect();
    // All rows are one line, which has its axis for a name.
    if words.is_empty() { RATE.into() } else { words.join(", ") }
}

fn size(row: &Row, column: usize) -> Result<usize, CsvError> {
    let value = row.values[column];
    value.parse().map_err(|_| CsvError::Number {
        line: row.number,
        column: SIZE,
        value: value.into(),
        right: "a whole number of bytes",
    })
}

fn rate(row: &Row, column: usize) -> Result<f64, CsvError> {
    let value = row.values[column];
    let number = value.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate >= 0.0);
    number.ok_or_else(|| CsvError::Number {
        line: row.number,
        column: RATE,
        value: value.into(),
        right: "a number from 0 up",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_differs_names_the_lines() {
        let text = "way,mrg_rxbuf,backend,size,mpps,lost\n\
                    in,on,ours,64,1.5,0\nin,off,ours,64,1.25,3\r\n\n in , on ,ours,128,1,0\n";
        let series = series(text).unwrap();
        let names: Vec<_> = series.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["mrg_rxbuf on", "mrg_rxbuf off"]);
        assert_eq!(series[0].points, [(64, 1.5), (128, 1.0)]);
    }

    #[test]
    fn several_columns_name_a_line_together_and_none_names_the_only_one() {
        let rows = "backend,way,mpps,size\nours,in,1,64\nours,out,2,64\ntheirs,in,3,64\n";
        let names: Vec<_> = series(rows).unwrap().into_iter().map(|s| s.name).collect();
        assert_eq!(names, ["ours, in", "ours, out", "theirs, in"]);
        let one = series("size,mpps\n64,1\n128,2\n").unwrap();
        assert_eq!(one, [Series { name: "mpps".into(), points: vec![(64, 1.0), (128, 2.0)] }]);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line_and_what_would_be_right() {
        let cases = [
            ("", "it is empty; the first line names the columns, size and mpps among them"),
            ("\n\n", "it is empty; the first line names the columns, size and mpps among them"),
            ("size,mpps\n", "it has no rows below the names of its columns"),
            ("size,pps\n64,1\n", "there is no column mpps; there are size, pps"),
            ("bytes,mpps\n64,1\n", "there is no column size; there are bytes, mpps"),
            ("size,mpps\n64,1\n64\n", "line 3 has 1 values, but there are 2 columns"),
            ("size,mpps\n\n6.4,1\n", "line 3: size is \"6.4\"; it must be a whole number of bytes"),
            ("size,mpps\n64,fast\n", "line 2: mpps is \"fast\"; it must be a number from 0 up"),
            ("size,mpps\n64,NaN\n", "line 2: mpps is \"NaN\"; it must be a number from 0 up"),
            ("size,mpps\n64,-1\n", "line 2: mpps is \"-1\"; it must be a number from 0 up"),
        ];
        for (text, expected) in cases {
            assert_eq!(series(text).unwrap_err().to_string(), expected, "{text:?}");
        }
    }
}
