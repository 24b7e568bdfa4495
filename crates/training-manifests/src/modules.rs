//! Generates the table of dependencies between modules of the product, and fails on cycles.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::tree::files_below;

/// The path of the page.
pub const PAGE: &str = "docs/reference/modules.md";

/// A module's path in its crate; empty for the root.
type Module = Vec<String>;
/// Modules with their dependencies.
type Graph = BTreeMap<Module, BTreeSet<Module>>;

/// Renders the tables of all crates of the product.
///
/// # Errors
/// If a source can't be read, or modules of a crate have cyclic dependencies.
pub fn page(root: &Path) -> anyhow::Result<String> {
    let mut page = "<!-- Generated. -->\n\n# Modules\n\nDependencies between modules of the product, without tests. Neither files nor directories of a crate may have cyclic dependencies.\n".to_owned();
    let crates = crates(root)?;
    page.push_str("\n## Crates\n\n| Crate | Uses |\n| --- | --- |\n");
    for dir in &crates {
        let uses = dependencies(dir, &crates)?.join("`, `");
        let uses = if uses.is_empty() {
            uses
        } else {
            format!("`{uses}`")
        };
        // Writing to a String can't fail.
        let _ = writeln!(page, "| `{}` | {uses} |", name_of(dir));
    }
    for dir in crates {
        let name = name_of(&dir);
        let files =
            graph(&read(&dir.join("src"))?).with_context(|| format!("{}/src", dir.display()))?;
        let rooms = rooms(&files);
        for graph in [&files, &rooms] {
            if let Some(ring) = ring(graph) {
                let ring: Vec<String> = ring.iter().map(|m| shown(m)).collect();
                bail!(
                    "{name}: modules depend on each other in a cycle: {}; move their common code into a separate module",
                    ring.join(" -> ")
                );
            }
        }
        let _ = write!(page, "\n## `{name}`\n\n| Module | Uses |\n| --- | --- |\n");
        for (module, uses) in &rooms {
            let uses: Vec<String> = uses.iter().map(|m| format!("`{}`", shown(m))).collect();
            let _ = writeln!(page, "| `{}` | {} |", shown(module), uses.join(", "));
        }
    }
    Ok(page)
}

/// Returns the crates of the product: three libraries and the operators.
fn crates(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let libraries = ["training-api", "training-core", "training-runtime"];
    let mut crates: Vec<PathBuf> = libraries
        .iter()
        .map(|c| root.join("crates").join(c))
        .collect();
    let operators = root.join("operators");
    let entries = std::fs::read_dir(&operators).with_context(|| operators.display().to_string())?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.join("src").is_dir() {
            found.push(path);
        }
    }
    found.sort();
    crates.extend(found);
    Ok(crates)
}

fn name_of(dir: &Path) -> String {
    let name = dir.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Returns the dependencies of a crate among `crates`, without dev-dependencies.
fn dependencies(dir: &Path, crates: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    let path = dir.join("Cargo.toml");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let section = text
        .split("\n[")
        .find(|part| part.starts_with("dependencies]"));
    let mut uses = Vec::new();
    for line in section.unwrap_or_default().lines() {
        let dependency = line.split(['.', ' ', '=']).next().unwrap_or_default();
        if crates.iter().any(|other| name_of(other) == dependency) {
            uses.push(dependency.to_owned());
        }
    }
    Ok(uses)
}

/// Reads the files of a crate by module.
fn read(src: &Path) -> anyhow::Result<BTreeMap<Module, String>> {
    let mut files = BTreeMap::new();
    for path in files_below(src)? {
        let inner = path.strip_prefix(src).unwrap_or(&path).with_extension("");
        let mut module: Module = inner
            .iter()
            .map(|part| part.to_string_lossy().into_owned())
            .collect();
        if module == ["main"] {
            // A separate crate, which uses the library.
            continue;
        }
        if module == ["lib"] {
            module.clear();
        }
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        files.insert(module, text);
    }
    Ok(files)
}

/// Returns the dependencies of each module, from the paths outside its tests.
fn graph(files: &BTreeMap<Module, String>) -> anyhow::Result<Graph> {
    let mut graph = Graph::new();
    for (module, text) in files {
        let tokens: TokenStream = text
            .parse()
            .map_err(|error| anyhow::anyhow!("{}: {error}", shown(module)))?;
        let inner = files.keys().filter(|m| m.len() == module.len() + 1);
        let inner = inner.filter(|m| m.starts_with(module));
        let mut paths = Paths {
            children: inner.filter_map(|m| m.last().cloned()).collect(),
            found: BTreeSet::new(),
        };
        paths.read(tokens, module);
        let uses = paths.found.iter().map(|path| file_of(files, path));
        let uses = uses.filter(|used| used != module).collect();
        graph.insert(module.clone(), uses);
    }
    Ok(graph)
}

/// Returns the module whose file contains a path's item.
fn file_of(files: &BTreeMap<Module, String>, path: &[String]) -> Module {
    let mut path = path.to_vec();
    while !files.contains_key(&path) && path.pop().is_some() {}
    path
}

/// Collects a module's paths into its own crate.
struct Paths {
    /// The names of its child modules.
    children: BTreeSet<String>,
    found: BTreeSet<Module>,
}

impl Paths {
    fn read(&mut self, tokens: TokenStream, here: &[String]) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            match token {
                TokenTree::Punct(p) if p.as_char() == '#' && is_for_tests(tokens.get(at + 1)) => {
                    at += 2;
                    while tokens.get(at).is_some_and(|token| !ends_item(token)) {
                        at += 1;
                    }
                }
                TokenTree::Group(group) => {
                    let inner = module_named(&tokens[..at]);
                    let here: Module = here.iter().cloned().chain(inner).collect();
                    self.read(group.stream(), &here);
                }
                TokenTree::Ident(ident) if !goes_on(&tokens[..at]) => {
                    let ident = ident.to_string();
                    let known = ["crate", "self", "super"].contains(&ident.as_str());
                    if (known || self.children.contains(&ident)) && is_path(&tokens[at + 1..]) {
                        self.path(&tokens[at..], here, Vec::new());
                    }
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
            at += 1;
        }
    }

    /// Reads one path from its first name, including all paths in braces.
    fn path(&mut self, tokens: &[TokenTree], here: &[String], mut names: Vec<String>) {
        let mut at = 0;
        loop {
            match tokens.get(at) {
                Some(TokenTree::Ident(ident)) => names.push(ident.to_string()),
                Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                    let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                    for item in
                        inner.split(|t| matches!(t, TokenTree::Punct(p) if p.as_char() == ','))
                    {
                        self.path(item, here, names.clone());
                    }
                    return;
                }
                _ => break,
            }
            if !is_path(&tokens[at + 1..]) {
                break;
            }
            at += 3;
        }
        if let Some(path) = absolute(&names, here) {
            self.found.insert(path);
        }
    }
}

/// Resolves a path from the crate's root.
fn absolute(names: &[String], here: &[String]) -> Option<Module> {
    let (first, mut rest) = names.split_first()?;
    let mut base = match first.as_str() {
        "crate" => Module::new(),
        "super" => here.split_last()?.1.to_vec(),
        "self" => here.to_vec(),
        child => here.iter().cloned().chain([child.to_owned()]).collect(),
    };
    while let Some((name, others)) = rest.split_first() {
        match name.as_str() {
            "super" => drop(base.pop()),
            "self" => {}
            _ => break,
        }
        rest = others;
    }
    base.extend_from_slice(rest);
    Some(base)
}

fn is_for_tests(attribute: Option<&TokenTree>) -> bool {
    let text = attribute.map(ToString::to_string).unwrap_or_default();
    text.replace(' ', "") == "[cfg(test)]"
}

/// Returns whether a token ends an item: its body or its semicolon.
fn ends_item(token: &TokenTree) -> bool {
    match token {
        TokenTree::Punct(p) => p.as_char() == ';',
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Ident(_) | TokenTree::Literal(_) => false,
    }
}

/// Returns the module whose body follows: `mod name` precedes it.
fn module_named(before: &[TokenTree]) -> Option<String> {
    match before {
        [.., TokenTree::Ident(word), TokenTree::Ident(name)] if *word == "mod" => {
            Some(name.to_string())
        }
        _ => None,
    }
}

/// Returns whether the next token continues a path, or belongs to a macro's own crate.
fn goes_on(before: &[TokenTree]) -> bool {
    matches!(before.last(), Some(TokenTree::Punct(p)) if [':', '.', '$'].contains(&p.as_char()))
        && !is_type(before)
}

/// Returns whether a single colon precedes: a type follows, which may begin a path.
fn is_type(before: &[TokenTree]) -> bool {
    let colon = |token: Option<&TokenTree>| matches!(token, Some(TokenTree::Punct(p)) if p.as_char() == ':');
    let (last, rest) = before.split_last().unzip();
    colon(last) && !rest.is_some_and(|rest| colon(rest.last()))
}

fn is_path(after: &[TokenTree]) -> bool {
    matches!(after, [TokenTree::Punct(a), TokenTree::Punct(b), ..] if a.as_char() == ':' && b.as_char() == ':')
}

/// Returns the graph of the modules right below the root, each with its submodules.
fn rooms(files: &Graph) -> Graph {
    let room = |module: &Module| module.first().cloned().into_iter().collect::<Module>();
    let mut rooms = Graph::new();
    for (module, uses) in files {
        let own = room(module);
        let others = uses.iter().map(room).filter(|other| *other != own);
        rooms.entry(own.clone()).or_default().extend(others);
    }
    rooms
}

/// Returns a cycle of modules, if there is one; its last module is its first.
fn ring(graph: &Graph) -> Option<Vec<Module>> {
    let mut left = graph.clone();
    loop {
        let known: BTreeSet<Module> = left.keys().cloned().collect();
        let before = left.len();
        left.retain(|_, uses| uses.iter().any(|used| known.contains(used)));
        if left.len() == before {
            break;
        }
    }
    // Every remaining module depends on a remaining one.
    let mut way: Vec<Module> = vec![left.keys().next()?.clone()];
    loop {
        let next = left
            .get(way.last()?)?
            .iter()
            .find(|used| left.contains_key(*used))?;
        if let Some(start) = way.iter().position(|module| module == next) {
            let mut ring = way.split_off(start);
            ring.push(next.clone());
            return Some(ring);
        }
        way.push(next.clone());
    }
}

fn shown(module: &[String]) -> String {
    if module.is_empty() {
        "lib".to_owned()
    } else {
        module.join("::")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &str)]) -> Graph {
        let module = |path: &str| -> Module {
            let names = path.split("::").filter(|name| !name.is_empty());
            names.map(str::to_owned).collect()
        };
        let files = files
            .iter()
            .map(|(path, text)| (module(path), (*text).to_owned()))
            .collect();
        graph(&files).unwrap()
    }

    fn ring_of(files: &[(&str, &str)]) -> String {
        let ring = ring(&of(files)).unwrap_or_default();
        let ring: Vec<String> = ring.iter().map(|m| shown(m)).collect();
        ring.join(" ")
    }

    #[test]
    fn every_way_of_naming_a_module_counts() {
        for text in [
            "use crate::b::B;",
            "use crate::{b, c};",
            "use super::b::{self, B};",
            "use crate::{c::{C, D}, b::B};",
            "fn f(x: crate::b::B) {}",
            "fn f() { g(super::b::h()) }",
            "mod inner { use super::super::b; }",
            "pub use crate::b;",
        ] {
            let graph = of(&[("", ""), ("a", text), ("b", ""), ("c", "")]);
            assert!(
                graph[&vec!["a".to_owned()]].contains(&vec!["b".to_owned()]),
                "{text}"
            );
        }
        let graph = of(&[("a", "fn f() { deep::g() }"), ("a::deep", "use super::F;")]);
        assert!(graph.iter().all(|(_, uses)| uses.len() == 1), "{graph:?}");
    }

    #[test]
    fn tests_and_other_crates_do_not_count() {
        for text in [
            "#[cfg(test)]\nuse crate::b::B;",
            "#[cfg(test)]\nmod tests { use crate::b::B; }",
            "#[cfg(test)] #[allow(dead_code)] fn f(x: u8) -> u8 { crate::b::f(x) }",
            "use other::b::B;",
            "macro_rules! m { () => { $crate::b::B } }",
            "fn f() { self.b.c() }",
            "// crate::b",
        ] {
            let graph = of(&[("", ""), ("a", text), ("b", "")]);
            assert_eq!(graph[&vec!["a".to_owned()]], BTreeSet::new(), "{text}");
        }
    }

    #[test]
    fn a_ring_is_named_module_by_module() {
        let long = [
            ("a", "use crate::b::B;"),
            ("b", "use crate::c::C;"),
            ("c", "use super::a::A;"),
        ];
        assert_eq!(ring_of(&long), "a b c a");
        assert_eq!(ring_of(&long[..2]), "");
        let parent = [("a", "mod b; pub use b::B;"), ("a::b", "use super::A;")];
        assert_eq!(ring_of(&parent), "a a::b a");
        assert_eq!(
            ring_of(&[("", "pub use a::A; mod a;"), ("a", "use crate::B;")]),
            "lib a lib"
        );
    }

    #[test]
    fn directories_may_not_use_each_other_either() {
        let files = of(&[
            ("low::a", "use crate::high::b;"),
            ("low::c", ""),
            ("high::b", ""),
            ("high::d", "use crate::low::c;"),
        ]);
        assert_eq!(ring(&files), None);
        assert!(ring(&rooms(&files)).is_some());
    }
}
