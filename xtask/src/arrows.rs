//! Which crate may use which: the picture in `ARCHITECTURE.md` as a table, and a check of the workspace against it.
//!
//! ```text
//! turbo-alloc ───┐
//!                ├──▶ turbo-graph ──▶ turbo-models ──┐
//! turbo-kernels ─┘                                   ├──▶ turbo-serve ──▶ turbo-bench     xtask (uses no crate)
//! turbo-sched ───────────────────────────────────────┘          an arrow reads "is used by"
//! ```
//! A crate may name only the crates from which an arrow leads to it. It reaches crates further below through what its
//! neighbours re-export. turbo-bench may name everything. Dependencies for tests and builds count too: a test that
//! needs an upper crate belongs in the upper crate.

use crate::workspace::Crate;

/// Each crate, with all crates that it may name.
const MAY_USE: [(&str, &[&str]); 8] = [
    ("turbo-alloc", &[]),
    ("turbo-kernels", &[]),
    ("turbo-sched", &[]),
    ("turbo-graph", &["turbo-alloc", "turbo-kernels"]),
    ("turbo-models", &["turbo-graph"]),
    ("turbo-serve", &["turbo-models", "turbo-sched"]),
    (
        "turbo-bench",
        &["turbo-alloc", "turbo-kernels", "turbo-graph", "turbo-models", "turbo-sched", "turbo-serve"],
    ),
    ("xtask", &[]),
];

/// The dependencies between `crates` that no arrow allows, one line each; empty if there are none.
pub(crate) fn violations(crates: &[Crate]) -> Vec<String> {
    let mut found = Vec::new();
    for krate in crates {
        let Some((_, may_use)) = MAY_USE.iter().find(|(name, _)| *name == krate.name) else {
            found.push(format!("{} is in no row of the table of arrows", krate.name));
            continue;
        };
        let ours = krate.dependencies.iter().filter(|d| crates.iter().any(|c| c.name == **d));
        for dependency in ours.filter(|d| !may_use.contains(&d.as_str())) {
            found.push(format!("{} uses {dependency}; it may use {}", krate.name, list(may_use)));
        }
    }
    found
}

fn list(names: &[&str]) -> String {
    if names.is_empty() { "no crate of the workspace".into() } else { format!("only {}", names.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Workspace;

    fn graph(edges: &[(&str, &[&str])]) -> Vec<Crate> {
        let krate = |(name, uses): &(&str, &[&str])| Crate {
            name: name.to_string(),
            version: "0.1.0".into(),
            features: vec![],
            dependencies: uses.iter().map(|d| d.to_string()).collect(),
        };
        edges.iter().map(krate).collect()
    }

    #[test]
    fn the_workspace_has_only_drawn_arrows() {
        let crates = Workspace::load().unwrap().crates;
        assert_eq!(violations(&crates), Vec::<String>::new());
        assert_eq!(crates.len(), MAY_USE.len(), "the table has a row for a crate that is gone");
    }

    #[test]
    fn drawn_arrows_are_allowed_and_strangers_are_not_our_matter() {
        let good = graph(&[
            ("turbo-alloc", &["serde"]),
            ("turbo-kernels", &[]),
            ("turbo-graph", &["turbo-alloc", "turbo-kernels", "thiserror"]),
            ("turbo-serve", &["turbo-models", "tokio"]),
            ("turbo-bench", &["turbo-alloc"]),
        ]);
        assert_eq!(violations(&good), Vec::<String>::new());
    }

    #[test]
    fn upward_sideways_skipping_and_unknown_are_found() {
        let bad = graph(&[
            ("turbo-alloc", &["turbo-graph"]),
            ("turbo-sched", &["turbo-alloc"]),
            ("turbo-graph", &["turbo-alloc"]),
            ("turbo-kernels", &[]),
            ("turbo-models", &["turbo-kernels"]),
            ("xtask", &["turbo-sched"]),
            ("turbo-new", &[]),
        ]);
        assert_eq!(
            violations(&bad),
            [
                "turbo-alloc uses turbo-graph; it may use no crate of the workspace",
                "turbo-sched uses turbo-alloc; it may use no crate of the workspace",
                "turbo-models uses turbo-kernels; it may use only turbo-graph",
                "xtask uses turbo-sched; it may use no crate of the workspace",
                "turbo-new is in no row of the table of arrows",
            ]
        );
    }

    #[test]
    fn no_two_crates_use_each_other() {
        for (upper, may_use) in MAY_USE {
            for lower in may_use {
                let (_, below) = MAY_USE.iter().find(|(name, _)| name == lower).unwrap();
                assert!(!below.contains(&upper), "{upper} and {lower} use each other");
            }
        }
    }
}
