//! Generates `docs/reference/<operator>-flags.md`: every flag, from the definitions that parse them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::{Arg, Command};
use training_runtime::cli::INERT;

/// Renders the page of one operator.
pub fn page(operator: &str, command: &Command) -> String {
    // By heading, flags without one first; within a heading in the order of the help.
    let mut groups: BTreeMap<Option<&str>, Vec<&Arg>> = BTreeMap::new();
    for arg in command.get_arguments().filter(|a| a.get_long().is_some()) {
        groups.entry(arg.get_help_heading()).or_default().push(arg);
    }
    let mut page = format!(
        "{}# Flags of {operator}\n\nA flag overrides its variable. One dash works as well as two. Durations have Go's \
         format: `500ms`, `15s`, `1m30s`. [Operate](../operate.md) explains them.\n",
        super::HEADER
    );
    for (heading, args) in groups {
        let _ = write!(
            page,
            "\n## {}\n\n| Flag | Variable | Default | Meaning |\n| --- | --- | --- | --- |\n",
            heading.unwrap_or("Settings")
        );
        for arg in args {
            let _ = writeln!(page, "{}", row(arg, heading == Some(INERT)));
        }
    }
    let subcommands: Vec<&Command> = command.get_subcommands().collect();
    if !subcommands.is_empty() {
        page.push_str("\n## Subcommands\n\n| Name | Meaning |\n| --- | --- |\n");
        for sub in subcommands {
            let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(page, "| `{}` | {} |", sub.get_name(), cell(&about));
        }
    }
    page
}

fn row(arg: &Arg, inert: bool) -> String {
    let mut names: Vec<String> = arg
        .get_long()
        .into_iter()
        .map(|n| format!("`--{n}`"))
        .collect();
    let others = arg.get_visible_aliases().unwrap_or_default();
    names.extend(others.into_iter().map(|n| format!("`--{n}`")));
    let variable = arg
        .get_env()
        .map(|v| format!("`{}`", v.to_string_lossy()))
        .unwrap_or_default();
    let default: Vec<String> = arg
        .get_default_values()
        .iter()
        .map(|v| v.to_string_lossy().into_owned())
        .filter(|v| !v.is_empty() && !inert)
        .map(|v| format!("`{v}`"))
        .collect();
    let mut meaning = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let values: Vec<String> = arg
        .get_possible_values()
        .iter()
        .map(|v| format!("`{}`", v.get_name()))
        .collect();
    if !values.is_empty() && arg.get_value_parser().possible_values().is_some() {
        let _ = write!(meaning, ". One of {}", values.join(", "));
    }
    format!(
        "| {} | {variable} | {} | {} |",
        names.join(", "),
        default.join(", "),
        cell(&meaning)
    )
}

/// Escapes a text for a table cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
