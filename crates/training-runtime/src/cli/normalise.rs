//! Converts Go's spelling of flags to ours.

use std::ffi::OsString;

/// Turns single-dash long flags (`-namespace=x`) into double-dash ones, before clap parses.
///
/// Go's flag package has no short flags and accepts one dash or two. The first argument, the program's name, stays; so do `-h`,
/// `-V`, negative numbers and everything after `--`.
pub fn normalise_args(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut literal = false;
    args.enumerate()
        .map(|(position, arg)| {
            literal = literal || arg == "--";
            if position == 0 || literal {
                arg
            } else {
                double_dash(arg)
            }
        })
        .collect()
}

/// Returns true if an argument is this flag, with or without a value.
pub fn is_flag(arg: &OsString, flag: &str) -> bool {
    let arg = arg.to_string_lossy();
    let rest = arg.strip_prefix(flag);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
}

/// Renames flags of existing operators to our names.
///
/// `names`: pairs of their name and ours.
pub fn rename_flags(args: Vec<OsString>, names: &[(&str, &str)]) -> Vec<OsString> {
    let rename = |arg: OsString| match names.iter().find(|(theirs, _)| is_flag(&arg, theirs)) {
        Some((theirs, ours)) => format!("{ours}{}", &arg.to_string_lossy()[theirs.len()..]).into(),
        None => arg,
    };
    args.into_iter().map(rename).collect()
}

fn double_dash(arg: OsString) -> OsString {
    match arg.as_encoded_bytes() {
        [b'-', first, _, ..] if first.is_ascii_alphabetic() => {
            let mut longer = OsString::from("-");
            longer.push(arg);
            longer
        }
        _ => arg,
    }
}
