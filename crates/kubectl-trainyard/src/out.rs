//! Prints to standard output and standard error, in colours on terminals.

use std::io::{self, IsTerminal as _, Write as _};

use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;

/// The style of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// The terminal's default.
    #[default]
    Plain,
    /// Success.
    Good,
    /// A job that waits.
    Warn,
    /// Failure.
    Bad,
    /// A remedy.
    Strong,
    /// Secondary information.
    Faint,
}

/// A line of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    style: Style,
    /// The text without colours.
    pub text: String,
}

impl Line {
    /// Creates a line with a style.
    pub fn new(style: Style, text: String) -> Self {
        Self { style, text }
    }

    /// Creates a line with the default style.
    pub fn plain(text: String) -> Self {
        Self::new(Style::Plain, text)
    }
}

/// The colours of ranks, in order. Source: ANSI escape codes.
const RANKS: [&str; 6] = ["36", "35", "34", "33", "32", "31"];

/// Returns the colour of the rank with this number.
pub fn of_rank(number: usize) -> &'static str {
    RANKS[number % RANKS.len()]
}

/// True if `NO_COLOR` is not set and the stream is a terminal.
fn colours(is_terminal: bool) -> bool {
    is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// True if standard output shows colours.
pub fn has_colours() -> bool {
    colours(io::stdout().is_terminal())
}

/// Wraps a text in the escape codes of a colour, if colours are enabled.
pub fn coloured(code: &str, text: &str, colours: bool) -> String {
    if colours && !code.is_empty() {
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    } else {
        text.to_owned()
    }
}

fn code(style: Style) -> &'static str {
    match style {
        Style::Plain => "",
        Style::Good => "32",
        Style::Warn => "33",
        Style::Bad => "31",
        Style::Strong => "1",
        Style::Faint => "2",
    }
}

/// Prints lines. Returns an error if standard output is closed.
pub fn print(lines: &[Line]) -> Result<()> {
    let colours = has_colours();
    let mut out = io::stdout().lock();
    for line in lines {
        writeln!(out, "{}", coloured(code(line.style), &line.text, colours))?;
    }
    Ok(out.flush()?)
}

/// Returns a line for each resource that could not be read, and why.
pub fn not_shown(unreadable: &[String]) -> impl Iterator<Item = Line> {
    let line = |text| Line::new(Style::Faint, format!("not shown: {text}"));
    unreadable.iter().map(line)
}

/// Aligns the cells of rows in columns.
pub fn table(rows: &[Vec<String>]) -> impl Iterator<Item = String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    rows.iter().map(move |row| {
        let cells = row.iter().zip(&widths);
        let cells: Vec<String> = cells.map(|(cell, &n)| format!("{cell:n$}")).collect();
        cells.join("  ").trim_end().to_owned()
    })
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// How to show what a verb found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Text.
    #[default]
    Text,
    /// Text with all details.
    Wide,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

impl Output {
    /// The format of data; `None` for text.
    pub fn data(self) -> Option<Format> {
        match self {
            Self::Text | Self::Wide => None,
            Self::Json => Some(Format::Json),
            Self::Yaml => Some(Format::Yaml),
        }
    }
}

/// Prints data in a format.
pub fn print_data(data: &impl Serialize, format: Format) -> Result<()> {
    let text = match format {
        Format::Json => serde_json::to_string_pretty(data)?,
        Format::Yaml => serde_saphyr::to_string(data)?,
    };
    print(&[Line::plain(text.trim_end().to_owned())])
}

/// How to show progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressMode {
    /// On a terminal, one line that is overwritten; otherwise like `Lines`.
    OneLine,
    /// One line per change, because other output is in between.
    Lines,
    /// Not at all.
    Silent,
}

/// Shows progress on standard error.
#[derive(Debug)]
pub struct Progress {
    mode: ProgressMode,
    last: String,
}

impl Progress {
    /// Creates a progress display that has shown nothing yet.
    pub fn new(mode: ProgressMode) -> Self {
        let can_rewrite = mode == ProgressMode::OneLine && io::stderr().is_terminal();
        Self {
            mode: match mode {
                ProgressMode::OneLine if !can_rewrite => ProgressMode::Lines,
                mode => mode,
            },
            last: String::new(),
        }
    }

    /// Shows a line, unless it is the same as the last one.
    pub fn show(&mut self, line: &str) {
        if self.last == line {
            return;
        }
        line.clone_into(&mut self.last);
        match self.mode {
            ProgressMode::OneLine => rewrite(line),
            ProgressMode::Lines => note(line),
            ProgressMode::Silent => {}
        }
    }

    /// Clears the line that is overwritten.
    pub fn clear(&self) {
        if self.mode == ProgressMode::OneLine && !self.last.is_empty() {
            rewrite("");
        }
    }
}

fn rewrite(line: &str) {
    let mut err = io::stderr().lock();
    // Progress is optional: ignore errors.
    let _ = write!(err, "\r\u{1b}[2K{line}").and_then(|()| err.flush());
}

/// Prints a line on standard error.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_aligned() {
        let rows = [["A", "LONG", "B"], ["longer", "1", "2"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        let lines: Vec<String> = table(&rows).collect();
        assert_eq!(lines, ["A       LONG  B", "longer  1     2"]);
    }

    #[test]
    fn text_is_coloured_only_on_terminals() {
        assert_eq!(coloured("31", "x", true), "\u{1b}[31mx\u{1b}[0m");
        assert_eq!(coloured("31", "x", false), "x");
        assert_eq!(coloured("", "x", true), "x");
        assert!(!colours(false));
    }
}
