//! What a run leaves behind: numbers, with the machine, commit and date they were measured on.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// Where and when numbers were measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Provenance {
    /// RFC 3339, UTC.
    pub date: String,
    /// Commit of the working tree, with `+` if files were changed other than documents and the results of figures;
    /// `unknown` outside a checkout.
    pub commit: String,
    /// Name of the processor, as the system gives it.
    pub processor: String,
    /// Logical cores that the process may use.
    pub cores: usize,
    /// Device, instruction set and threads, as turbo names them.
    pub device: String,
}

impl Provenance {
    /// The provenance of this process, now.
    pub fn here(device: String) -> Self {
        Provenance {
            date: now(),
            commit: commit(Path::new(".")),
            processor: processor(),
            cores: std::thread::available_parallelism().map_or(1, Into::into),
            device,
        }
    }
}

/// This moment as RFC 3339, UTC.
pub fn now() -> String {
    OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_else(|_| "unknown".to_owned())
}

/// A figure's numbers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record<Data, Row, Summary> {
    /// Name of the figure.
    pub figure: String,
    /// Where and when.
    pub provenance: Provenance,
    /// What was run.
    pub data: Data,
    /// A summary of the results.
    pub summary: Summary,
    /// What was measured.
    pub rows: Vec<Row>,
}

impl<Data: Serialize, Row: Serialize, Summary: Serialize> Record<Data, Row, Summary> {
    /// Writes `FIGURE.json` to `dir`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let file = dir.join(format!("{}.json", self.figure));
        let text = serde_json::to_string_pretty(self)? + "\n";
        write_whole(&file, &text)
    }
}

impl<Data: DeserializeOwned, Row: DeserializeOwned, Summary: DeserializeOwned> Record<Data, Row, Summary> {
    /// Reads what [`Record::write`] wrote.
    ///
    /// # Errors
    /// When there is no such file, or it does not hold such a record.
    pub fn read(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is no such record", file.display()))
    }
}

/// Writes a file of text as [`whole`] does.
pub(crate) fn write_whole(file: &Path, text: &str) -> Result<()> {
    whole(file, |place| Ok(fs::write(place, text)?))
}

/// Has `write` write a file beside its place, and moves it there. If anything interrupts this, the earlier file stays.
///
/// # Errors
/// What `write` fails with, or that there is no such folder.
pub(crate) fn whole(file: &Path, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let cannot = || format!("cannot write {}", file.display());
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let scratch = tempfile::Builder::new().prefix(".writing-").tempdir_in(folder).with_context(cannot)?;
    let place = scratch.path().join(file.file_name().with_context(cannot)?);
    write(&place).with_context(cannot)?;
    fs::rename(&place, file).with_context(cannot)
}

/// Replaces the section that measured the same, which is the one with an equal `key`; appends the section if there is
/// none.
pub(crate) fn replace<Section, Key: PartialEq>(
    sections: &mut Vec<Section>,
    section: Section,
    key: impl Fn(&Section) -> Key,
) {
    match sections.iter_mut().find(|it| key(it) == key(&section)) {
        Some(place) => *place = section,
        None => sections.push(section),
    }
}

/// The commit of the checkout that `dir` is in.
fn commit(dir: &Path) -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .current_dir(dir)
            .args(arguments)
            .output()
            .ok()
            .filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown".to_owned() };
    // A run's own records, pages and pictures, and the tables that it puts into the README, do not affect a
    // measurement.
    let code = [":(top)", ":(top,exclude,glob)**/*.md", ":(top,exclude)turbo-bench/results"];
    let status = [&["status", "--porcelain", "--untracked-files=no", "--"], &code[..]].concat();
    let changed = git(&status).is_some_and(|changes| !changes.is_empty());
    if changed { commit + "+" } else { commit }
}

/// Name of the processor, as the system gives it; the architecture where it gives none.
#[must_use]
pub fn processor() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    processor_of(&cpuinfo).unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// The processor's name, with family and model where they are known: virtual machines give one name to several
/// generations.
fn processor_of(cpuinfo: &str) -> Option<String> {
    let field = |wanted: &str| {
        let fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        fields.map(|(name, value)| (name.trim(), value.trim())).find(|(name, _)| *name == wanted)
    };
    let (_, name) = field("model name")?;
    Some(match (field("cpu family"), field("model")) {
        (Some((_, family)), Some((_, model))) => format!("{name} (family {family}, model {model})"),
        _ => name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn a_processor_is_told_from_others_of_its_name() {
        let cpuinfo =
            "processor\t: 0\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\nmicrocode\t: 0x1\n";
        assert_eq!(processor_of(cpuinfo).unwrap(), "AMD EPYC (family 26, model 2)");
        assert_eq!(processor_of("model name : Neoverse\n").unwrap(), "Neoverse");
        assert_eq!(processor_of("processor : 0\n"), None);
    }

    #[test]
    fn a_record_that_is_not_written_to_its_end_leaves_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        let [file, before] = ["it.json", "before.json"].map(|name| folder.path().join(name));
        let write = |rows| {
            let (figure, provenance) = ("it".to_owned(), Provenance::here("device".to_owned()));
            Record { figure, provenance, data: (), summary: (), rows }.write(folder.path()).unwrap();
        };
        let rows = |file: &Path| Record::<(), u32, ()>::read(file).unwrap().rows;
        write(vec![1]);
        let half = |place: &Path| -> Result<()> {
            fs::write(place, "{\"figure\":")?;
            bail!("the disk is full")
        };
        let error = whole(&file, half).unwrap_err();
        assert!(format!("{error:#}").ends_with("it.json: the disk is full"), "{error:#}");
        assert_eq!(rows(&file), [1]);
        // a process that has the old file open never sees it change
        fs::hard_link(&file, &before).unwrap();
        write(vec![1, 2]);
        assert_eq!([rows(&before), rows(&file)], [vec![1], vec![1, 2]]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is left");
    }

    #[test]
    fn what_a_figure_writes_does_not_change_the_commit_that_it_names() {
        let checkout = tempfile::tempdir().unwrap();
        let (results, dir) = (checkout.path().join("turbo-bench/results"), checkout.path());
        let git = |line: &str| {
            let config = ["-c", "user.name=x", "-c", "user.email=x@y", "-c", "core.hooksPath=/dev/null"];
            let done = Command::new("git").current_dir(dir).args(config).args(line.split(' ')).output();
            done.is_ok_and(|done| done.status.success())
        };
        if !git("init --quiet") {
            eprintln!("skipped: there is no git");
            return;
        }
        fs::create_dir_all(&results).unwrap();
        let files = ["README.md", "turbo-bench/results/cpu.json", "code.rs"].map(|name| dir.join(name));
        files.iter().for_each(|file| fs::write(file, "before").unwrap());
        assert!(git("add .") && git("commit --quiet --message x"));
        let clean = commit(dir);
        assert_eq!(clean.len(), 12, "{clean}");
        let [readme, record, code] = files;
        [readme, record].iter().for_each(|file| fs::write(file, "after").unwrap());
        assert_eq!([commit(dir), commit(&results)], [clean.clone(), clean.clone()]);
        fs::write(code, "after").unwrap();
        assert_eq!([commit(dir), commit(&results)], [clean.clone() + "+", clean + "+"]);
    }
}
