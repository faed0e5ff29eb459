//! What came back from the machine with the GPU: is it complete, and can it be believed?

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::{Ceilings, Findings, Found, Measured, Section, contest::Timed, sanitizer::Finding};
use crate::record::{Provenance, Record};

/// What the bundle was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Commit of the checkout, with `+` if it was changed.
    pub commit: String,
    /// When that commit was made.
    pub date: String,
    /// The files that were packed.
    pub files: Vec<Packed>,
}

/// A file of the bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packed {
    /// Its place in the bundle.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// SHA-256, hexadecimal.
    pub sha256: String,
}

/// How a step of `gpu.sh` ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Name of the step.
    pub step: String,
    /// Its exit code: 0 if all is well, 124 if it took too long.
    pub rc: i32,
    /// Seconds that it took.
    pub seconds: u64,
    /// The last line that it printed.
    pub says: String,
}

/// Everything that came back.
#[derive(Debug)]
pub struct Returned {
    manifest: Manifest,
    steps: Vec<Ended>,
    sections: Vec<Section>,
}

/// The file of `gpu.sh`: a line of JSON for the bundle, and one for each step.
pub const RUN: &str = "run.jsonl";
/// The steps that leave a section, in the order in which they run.
pub const STEPS: [&str; 6] = ["suite", "ceilings", "rows", "attention", "encoder", "sanitizer"];
/// The program of the bundle; the record keeps its digest.
const PROGRAM: &str = "turbo-bench";

/// Reads the folders that runs of `gpu.sh` filled, all with the same bundle. If several ran a step, the last one
/// counts.
///
/// # Errors
/// When one is not such a folder, when a file holds something else, or when they are of different bundles.
pub fn read(dirs: &[impl AsRef<Path>]) -> Result<Returned> {
    let mut all: Option<Returned> = None;
    for dir in dirs {
        let next = read_one(dir.as_ref())?;
        all = Some(match all {
            Some(before) => before.then(next)?,
            None => next,
        });
    }
    all.context("there is no folder")
}

fn read_one(dir: &Path) -> Result<Returned> {
    let text =
        |file: &Path| fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()));
    let file = dir.join(RUN);
    let run = text(&file)?;
    let (manifest, steps) =
        run.split_once('\n').with_context(|| format!("{}: it is empty", file.display()))?;
    let no_line = |line: &str| format!("{}: no such line: {line}", file.display());
    let manifest = serde_json::from_str(manifest).with_context(|| no_line(manifest))?;
    let steps = steps.lines().map(|line| serde_json::from_str(line).with_context(|| no_line(line)));
    let mut sections = Vec::new();
    for step in STEPS {
        let file = dir.join(format!("{step}.json"));
        if !file.exists() {
            continue;
        }
        let section: Section = serde_json::from_str(&text(&file)?)
            .with_context(|| format!("{} is no section", file.display()))?;
        let found = section.found.step();
        ensure!(found == step, "{}: expected a section of {step}, got one of {found}", file.display());
        sections.push(section);
    }
    Ok(Returned { manifest, steps: steps.collect::<Result<_>>()?, sections })
}

impl Returned {
    /// Adds what a later run found.
    fn then(self, later: Self) -> Result<Self> {
        let (before, after) = (&self.manifest, &later.manifest);
        ensure!(before == after, "they are of different bundles: {} and {}", before.commit, after.commit);
        let is_old = |step: &str| !later.steps.iter().any(|it| it.step == step);
        let steps = self.steps.into_iter().filter(|it| is_old(&it.step)).collect::<Vec<_>>();
        let sections = self.sections.into_iter().filter(|it| is_old(it.found.step())).collect::<Vec<_>>();
        let mut all = Self {
            manifest: self.manifest,
            steps: steps.into_iter().chain(later.steps).collect(),
            sections: sections.into_iter().chain(later.sections).collect(),
        };
        let rank = |step: &str| STEPS.iter().position(|it| *it == step);
        all.steps.sort_by_key(|it| rank(&it.step));
        all.sections.sort_by_key(|it| rank(it.found.step()));
        Ok(all)
    }

    /// Makes the record.
    ///
    /// # Errors
    /// When the device computes something else than it should, since then no time means anything; when a step says that
    /// it is done but left nothing; when sections are of different GPUs, or numbers are impossible.
    pub fn findings(self) -> Result<Findings> {
        let Self { mut manifest, steps, sections } = self;
        let checks = sections.iter().find_map(|section| match &section.found {
            Found::Suite(checks) => Some(checks),
            _ => None,
        });
        let checks = checks
            .context("the suite was not run: nobody knows whether the device computes what it should")?;
        let failed: Vec<String> = checks
            .iter()
            .filter_map(|it| Some(format!("{} {}: {}", it.dtype.name(), it.what, it.failed.as_ref()?)))
            .collect();
        ensure!(
            failed.is_empty(),
            "{} checks failed, so no time is recorded: {}",
            failed.len(),
            failed.join("; ")
        );
        ensure!(!checks.is_empty(), "the suite checked nothing");
        for Ended { step, rc, says, .. } in &steps {
            let has_section = sections.iter().any(|section| section.found.step() == step);
            ensure!(*rc != 0 || has_section, "{step}: it says that it is done, and there is no {step}.json");
            ensure!(step != "suite" || *rc == 0, "suite: it ended with {rc}: {says}");
        }
        let first = &sections[0];
        for section in &sections {
            let (got, expected) = (&section.machine, &first.machine);
            let step = section.found.step();
            ensure!(got == expected, "{step}: it is of another GPU: expected {expected:?}, got {got:?}");
            plausible(section).with_context(|| format!("{step}: this cannot be"))?;
        }
        manifest.files.retain(|file| file.name == PROGRAM);
        let provenance = Provenance { commit: manifest.commit.clone(), ..first.provenance.clone() };
        let figure = "gpu".to_owned();
        Ok(Record { figure, provenance, data: manifest, summary: steps, rows: sections })
    }
}

/// A share of the bandwidth of a copy that is impossible with data that no cache holds.
const IMPOSSIBLE: f64 = 1.15;

fn plausible(section: &Section) -> Result<()> {
    if let Some(ceilings) = &section.ceilings {
        let numbers = [ceilings.copy(), ceilings.launch_us, ceilings.enqueue_us];
        ensure!(numbers.iter().all(|it| it.is_finite() && *it > 0.0), "ceilings of {numbers:?}");
    }
    match &section.found {
        Found::Rows { wide, reductions } => {
            wide.iter().chain(reductions).try_for_each(|it| times(it.operation.name(), &it.times))?;
            let ceilings =
                section.ceilings.as_ref().context("there are no ceilings that shares could be of")?;
            wide.iter().try_for_each(|it| all_of_it(it, ceilings))
        }
        Found::Attention(all) => all.iter().try_for_each(|it| times(it.operation.name(), &it.times)),
        Found::Encoder(encoders) => {
            encoders.cases.iter().try_for_each(|it| times(&it.workload, &it.times))?;
            let Some(overlap) = &encoders.overlap else { return Ok(()) };
            ensure!(overlap.timeline.is_in_order(), "the timeline goes backwards: {:?}", overlap.timeline);
            times("batches", &overlap.times)
        }
        Found::Suite(_) | Found::Ceilings | Found::Sanitizer(_) => Ok(()),
    }
}

/// Fails if a contestant seems to move more than a copy in the same time: then it did not move all of its data.
fn all_of_it(Measured { operation, dtype, times, .. }: &Measured, ceilings: &Ceilings) -> Result<()> {
    for Timed { who, median_us, .. } in times {
        let (share, name) = (ceilings.of_copy(operation, *dtype, *median_us), operation.name());
        ensure!(share < IMPOSSIBLE, "{name}: {who} moves {share:.2} of what a copy moves in the same time");
    }
    Ok(())
}

fn times(name: &str, times: &[Timed]) -> Result<()> {
    for Timed { who, p10_us, median_us, p90_us, .. } in times {
        let in_order = *p10_us > 0.0 && p10_us <= median_us && median_us <= p90_us && p90_us.is_finite();
        ensure!(in_order, "{name}: {who} takes {p10_us}, {median_us}, {p90_us} µs");
    }
    Ok(())
}

/// Remarks to show with the record: steps that did not end well, and what the sanitizer found.
#[must_use]
pub fn remarks(findings: &Findings) -> Vec<String> {
    let ended_badly = findings.summary.iter().filter(|it| it.rc != 0);
    let of_steps = ended_badly.map(|Ended { step, rc, says, .. }| format!("{step}: ended with {rc}: {says}"));
    let of_sections = findings.rows.iter().flat_map(|section| match &section.found {
        Found::Sanitizer(tools) => &tools[..],
        _ => &[],
    });
    let of_tools = of_sections.filter(|it| it.finding != Finding::Clean);
    of_steps.chain(of_tools.map(|it| format!("{}: {:?}", it.tool, it.finding))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::gpu::{encoder::Encoders, sample};

    /// A folder such as `gpu.sh` leaves.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        sample::sections().iter().for_each(|section| section.write(folder.path()).unwrap());
        let lines = [serde_json::to_string(&sample::manifest()).unwrap()];
        let steps = sample::steps().into_iter().map(|step| serde_json::to_string(&step).unwrap());
        let lines: Vec<String> = lines.into_iter().chain(steps).collect();
        fs::write(folder.path().join(RUN), lines.join("\n") + "\n").unwrap();
        folder
    }

    fn refused(folder: &Path) -> String {
        let returned = read(&[folder]).and_then(Returned::findings);
        format!("{:#}", returned.expect_err("it is refused"))
    }

    /// Changes the section of a step.
    fn change(folder: &Path, step: &str, change: impl FnOnce(&mut Section)) {
        let mut section = sample::sections().into_iter().find(|it| it.found.step() == step).unwrap();
        change(&mut section);
        section.write(folder).unwrap();
    }

    #[test]
    fn what_is_whole_is_recorded_with_the_commit_that_was_packed() {
        let folder = folder();
        let findings = read(&[folder.path()]).unwrap().findings().unwrap();
        assert_eq!(findings.rows.len(), STEPS.len());
        assert_eq!(findings.provenance.commit, "0123456789ab");
        assert_eq!(findings.data.files.len(), 1, "the program alone: {:?}", findings.data.files);
        assert_eq!(remarks(&findings), Vec::<String>::new());
    }

    #[test]
    fn without_a_right_suite_no_time_is_recorded() {
        let whole = folder();
        let folder = whole.path();
        change(folder, "suite", |section| {
            let Found::Suite(checks) = &mut section.found else { return };
            checks[0].failed = Some("value 3 is wrong".to_owned());
        });
        let why = refused(folder);
        assert!(
            why.starts_with("1 checks failed, so no time is recorded: bf16 kernels: softmax: value 3"),
            "{why}"
        );
        fs::remove_file(folder.join("suite.json")).unwrap();
        assert!(refused(folder).starts_with("the suite was not run"));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let whole = folder();
        let folder = whole.path();
        change(folder, "rows", |section| {
            let Found::Rows { wide, .. } = &mut section.found else { return };
            let timed = &mut wide[0].times[0];
            (timed.p10_us, timed.median_us) = (1.0, 1.0);
        });
        assert!(
            refused(folder).contains("rows: this cannot be: softmax: turbo moves"),
            "{}",
            refused(folder)
        );
        change(folder, "rows", |section| section.ceilings = None);
        assert!(refused(folder).contains("there are no ceilings"), "{}", refused(folder));
        change(folder, "rows", |_| ());
        change(folder, "encoder", |section| {
            let Found::Encoder(encoders) = &mut section.found else { return };
            encoders.cases[0].times[0].p90_us = 0.5;
        });
        assert!(
            refused(folder).contains("encoder: this cannot be: 1 × 128: turbo takes"),
            "{}",
            refused(folder)
        );
        change(folder, "encoder", |section| {
            let Found::Encoder(Encoders { overlap: Some(overlap), .. }) = &mut section.found else { return };
            overlap.timeline.0[1].done_us = 1;
        });
        assert!(
            refused(folder).contains("encoder: this cannot be: the timeline goes backwards"),
            "{}",
            refused(folder)
        );
        change(folder, "encoder", |section| section.machine.gpu = "another".to_owned());
        assert!(refused(folder).contains("encoder: it is of another GPU"), "{}", refused(folder));
    }

    #[test]
    fn a_step_that_failed_is_a_remark_and_one_that_lies_is_refused() {
        let whole = folder();
        let folder = whole.path();
        fs::remove_file(folder.join("attention.json")).unwrap();
        assert_eq!(refused(folder), "attention: it says that it is done, and there is no attention.json");
        let run = fs::read_to_string(folder.join(RUN)).unwrap();
        let failed = run.replace(r#""attention","rc":0"#, r#""attention","rc":124"#);
        assert_ne!(run, failed);
        fs::write(folder.join(RUN), failed).unwrap();
        let findings = read(&[folder]).unwrap().findings().unwrap();
        assert_eq!(remarks(&findings), ["attention: ended with 124: done"]);
    }

    /// Two runs happen because the machine is lent for some minutes at a time.
    #[test]
    fn two_runs_of_one_bundle_are_one_record() {
        let (first, second) = (folder(), folder());
        let keep = |folder: &Path, kept: &[&str]| {
            let run = fs::read_to_string(folder.join(RUN)).unwrap();
            let is_kept = |line: &&str| {
                line.contains("commit") || kept.iter().any(|step| line.contains(&format!("\"{step}\"")))
            };
            let lines: Vec<&str> = run.lines().filter(is_kept).collect();
            fs::write(folder.join(RUN), lines.join("\n") + "\n").unwrap();
            for step in STEPS.into_iter().filter(|step| !kept.contains(step)) {
                fs::remove_file(folder.join(format!("{step}.json"))).unwrap();
            }
        };
        keep(first.path(), &["suite", "rows", "encoder"]);
        keep(second.path(), &["ceilings", "rows"]);
        change(second.path(), "rows", |section| section.seconds = 77.0);
        let findings = read(&[first.path(), second.path()]).unwrap().findings().unwrap();
        let steps: Vec<&str> = findings.rows.iter().map(|section| section.found.step()).collect();
        assert_eq!(steps, ["suite", "ceilings", "rows", "encoder"]);
        assert_eq!(findings.summary.iter().map(|it| it.step.as_str()).collect::<Vec<_>>(), steps);
        assert_eq!(findings.rows[2].seconds, 77.0);
        let run = fs::read_to_string(second.path().join(RUN)).unwrap();
        fs::write(second.path().join(RUN), run.replace("0123456789ab", "another")).unwrap();
        let error = read(&[first.path(), second.path()]).unwrap_err().to_string();
        assert_eq!(error, "they are of different bundles: 0123456789ab and another");
    }

    #[test]
    fn another_folder_is_none() {
        let folder = tempfile::tempdir().unwrap();
        assert!(refused(folder.path()).contains("run.jsonl"));
        fs::write(folder.path().join(RUN), "{}\n").unwrap();
        assert!(refused(folder.path()).contains("no such line: {}"));
    }
}
