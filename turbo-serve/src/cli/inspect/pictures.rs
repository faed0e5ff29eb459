//! The graphs and the memory plan as SVG files.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use turbo_models::graph::{
    Graph, TraceStep,
    memory::{self, PlannedBatch},
    print::svg,
};

use super::{batch_name, heading};

/// Writes all pictures into `folder`, which is made; says which.
///
/// # Errors
/// When the folder cannot be made or written to.
pub(super) fn write(
    folder: &Path,
    name: &str,
    drawn: &Graph,
    steps: &[TraceStep],
    planned: &[PlannedBatch],
) -> Result<String> {
    let mut files = vec![("graph-0-drawn.svg".to_owned(), svg(drawn, &format!("{name}: as drawn")))];
    for (step, number) in steps.iter().filter(|step| step.rewrites > 0).zip(1..) {
        let words: Vec<&str> = step.pass.split([' ', ',']).filter(|word| !word.is_empty()).collect();
        let title = format!("{name}: after `{}`", step.pass);
        files.push((format!("graph-{number}-{}.svg", words.join("-")), svg(&step.graph, &title)));
    }
    let then = std::iter::once("").chain(std::iter::repeat("then "));
    let title = |(then, batch): (&str, &PlannedBatch)| format!("{then}{}", batch_name(&batch.extents));
    let titles: Vec<String> = then.zip(planned).map(title).collect();
    files.push(("memory.svg".to_owned(), memory::svg(titles.iter().map(String::as_str).zip(planned))));

    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut text = heading(&format!("pictures in {}", folder.display()));
    for (file, picture) in files {
        let path = folder.join(&file);
        fs::write(&path, picture).with_context(|| format!("cannot write {}", path.display()))?;
        text += &format!("{file}\n");
    }
    Ok(text)
}
