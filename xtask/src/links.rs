//! Links in the documentation: each file and each heading that a page names is there.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::step::{Outcome, root};

/// Folders that hold no pages of ours.
const SKIPPED: &[&str] = &["target", ".git"];

pub(crate) fn check() -> Outcome {
    let mut pages = Vec::new();
    find_pages(root(), &mut pages)?;
    let mut headings = HashMap::new();
    let mut broken = Vec::new();
    for page in &pages {
        let text = fs::read_to_string(page).map_err(|error| format!("{}: {error}", page.display()))?;
        for (line, target) in links(&text) {
            if let Some(why) = fault(page, &target, &mut headings) {
                let page = page.strip_prefix(root()).unwrap_or(page).display();
                broken.push(format!("{page}:{line}: `{target}` {why}"));
            }
        }
    }
    if broken.is_empty() {
        println!("{} pages", pages.len());
        return Ok(());
    }
    Err(format!("links that lead nowhere:\n{}", broken.join("\n")))
}

fn find_pages(folder: &Path, pages: &mut Vec<PathBuf>) -> Outcome {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for entry in entries {
        let path = entry.map_err(|error| format!("{}: {error}", folder.display()))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() && !SKIPPED.contains(&name) {
            find_pages(&path, pages)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    pages.sort();
    Ok(())
}

/// The lines of a page that are not code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter_map(move |(number, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        (!in_code && !fence).then_some((number + 1, line))
    })
}

/// A line without what stands in backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// The targets of all links and images, with the lines where they stand.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        let line = without_code(line);
        for behind in line.split("](").skip(1) {
            if let Some((target, _)) = behind.split_once(')') {
                found.push((number, target.to_owned()));
            }
        }
    }
    found
}

/// Why a link leads nowhere. Links to other sites are not followed: tests need no network.
fn fault(page: &Path, target: &str, headings: &mut HashMap<PathBuf, HashSet<String>>) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let path = match file {
        "" => page.to_owned(),
        file => plain(&page.parent()?.join(file)),
    };
    if !path.exists() {
        return Some("is not there".into());
    }
    let anchor = anchor?;
    let known = headings
        .entry(path.clone())
        .or_insert_with(|| anchors(&fs::read_to_string(&path).unwrap_or_default()));
    (!known.contains(anchor)).then(|| format!("has no heading `#{anchor}`"))
}

/// A path without `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    plain
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(text: &str) -> HashSet<String> {
    let mut anchors = HashSet::new();
    for (_, line) in prose(text) {
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let slug = slug(heading.trim());
        let numbered = (1..).map(|number| format!("{slug}-{number}"));
        let free = std::iter::once(slug.clone()).chain(numbered).find(|slug| !anchors.contains(slug));
        anchors.extend(free);
    }
    anchors
}

fn slug(heading: &str) -> String {
    // Of a link, only the text counts.
    let mut text = String::new();
    for part in heading.split("](") {
        let part = if text.is_empty() { part } else { part.split_once(')').map_or("", |(_, rest)| rest) };
        text.push_str(part);
    }
    let kept = |letter: &char| letter.is_alphanumeric() || " -_".contains(*letter);
    text.to_lowercase().chars().filter(kept).map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_those_of_github() {
        let page = "# `file:` — locks\n## Why? (Because.)\n## Why? Because\n```\n## code\n```\n### A [link](b.md#c) in it\n";
        let anchors = anchors(page);
        let mut sorted: Vec<_> = anchors.iter().map(String::as_str).collect();
        sorted.sort_unstable();
        assert_eq!(sorted, ["a-link-in-it", "file--locks", "why-because", "why-because-1"]);
    }

    #[test]
    fn a_link_that_leads_nowhere_is_found() {
        let page = Path::new("Cargo.toml");
        let mut headings = HashMap::new();
        let mut is_broken = |target: &str| fault(page, target, &mut headings).is_some();
        assert!(is_broken("gone.md") && is_broken("#gone") && is_broken("src/main.rs#gone"));
        assert!(!is_broken("src/main.rs") && !is_broken("https://example.org/gone"));
    }

    #[test]
    fn code_has_no_links() {
        let found = links("see [a](a.md#x) and `[b](b.md)`\n```\n[c](c.md)\n```\n![d](d.svg)");
        assert_eq!(found, [(1, "a.md#x".to_owned()), (5, "d.svg".to_owned())]);
    }
}
