//! turbo on a CPU beside other engines: one forward pass of an encoder, from token ids to the last hidden state.
//!
//! ```text
//! regimes ─▶ rounds that the budget buys ─▶ one process per rival ─▶ all compute the same? ─▶ turns ─▶ Section
//!                                           Sections of this and of earlier runs ─▶ cpu.json · cpu.md · pictures
//! ```
//!
//! All rivals load the same random weights, get the same ids and use the same number of threads. They take turns of a
//! fraction of a second, in another order each round, so that other load on the machine affects all of them equally.
//! While one runs, the others sleep. Each time is compared with the machine's floor: all operations at its measured
//! peak, or all weights once from memory, whichever takes longer. The peak takes turns like a rival, because the clock
//! rate varies.
//!
//! | module | what it is about |
//! |---|---|
//! | [`regime`] | what is measured, as data |
//! | `budget` | the time that this takes, by estimate |
//! | `ceilings` | what the machine can do at most |
//! | `turn`, `batches`, `stream`, `scaling`, `products` | how each kind of work is timed |
//! | [`goals`] | the goals, and whether they were reached |
//! | [`page`], `picture` | how it is shown |
//! | [`place`] | where records lie |

pub mod goals;
pub mod page;
pub mod place;
pub mod regime;

mod batches;
mod budget;
mod ceilings;
mod picture;
mod products;
mod scaling;
mod stream;
mod turn;

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use turbo_kernels::{Cpu, Device};

use crate::{
    figures::{
        agree,
        rounds::{self, Cost},
    },
    load,
    progress::{Timeline, minutes},
    record::{self, Provenance, Record},
    rival::Rival,
};
use ceilings::{Floor, Limit};

pub use crate::figures::{agree::Agreement, rounds::Rounds};
pub use batches::Case;
pub use ceilings::Ceilings;
pub use products::Product;
pub use regime::{Precision, Regime, Work};
pub use scaling::{Disturbance, Scale};
pub use stream::{Policy, Stream};

/// Name of the rival that the others are compared with.
pub const TURBO: &str = "turbo";

/// How the record was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Data {
    /// Threads of every rival.
    pub threads: usize,
}

/// The state of the machine during the last run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// How busy it was.
    pub load: load::Load,
}

/// What one regime found, and when.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Section {
    /// Name of the regime.
    pub name: String,
    /// The model.
    pub model: String,
    /// How the layers' products were computed.
    pub precision: Precision,
    /// RFC 3339, UTC.
    pub date: String,
    /// Commit of the working tree when the run began.
    pub commit: String,
    /// Name of the processor, as the system gives it.
    pub processor: String,
    /// Threads of every rival.
    pub threads: usize,
    /// The method of timing; see [`Section::is_current`].
    pub method: u32,
    /// Rounds of turns.
    pub rounds: usize,
    /// Seconds that it took.
    pub seconds: f64,
    /// What the machine could do at most.
    pub ceilings: Ceilings,
    /// How closely each rival computes the same as turbo in f32.
    pub agreement: Vec<Agreement>,
    /// What was measured.
    pub rows: Rows,
}

/// What was measured, by kind of work.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rows {
    /// Of [`Work::Products`].
    Products(Vec<Product>),
    /// Of [`Work::Batches`].
    Batches(Vec<Case>),
    /// Of [`Work::Stream`].
    Stream(Vec<Stream>),
    /// Of [`Work::Scaling`].
    Scaling(Vec<Scale>),
}

impl Rows {
    /// The number of the present method. It is raised when the method changes, so that a page can point out sections
    /// that were timed in another way.
    ///
    /// - Method 1: first runs of a shape counted in streams; turns rotated; rivals whose single run filled a turn had
    ///   no run before it; copies of a weight were counted in f32; a median was one of the values.
    /// - Method 2: ceilings were the best of some looks before everything else.
    /// - Method 3: one look at each engine decided which had a chance in a stream, and the others' batches there had
    ///   one request or twenty; the peak beside products and batches was the best of seven runs of a few
    ///   milliseconds, after a rest, once a round.
    fn method(&self) -> u32 {
        match self {
            Self::Stream(_) | Self::Products(_) | Self::Batches(_) => 4,
            Self::Scaling(_) => 3,
        }
    }
}

impl Section {
    /// Whether it was timed by the present method.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.method == self.rows.method()
    }
}

/// The record of all that was measured.
pub type Comparison = Record<Data, Section, Summary>;

/// A process that takes part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entrant {
    /// The engine.
    pub rival: String,
    /// The model.
    pub model: String,
    /// How it computes the layers' products.
    pub precision: Precision,
    /// Threads that it uses.
    pub threads: usize,
}

/// Starts the processes.
pub trait Stage {
    /// The folder of a model's checkpoint.
    fn checkpoint(&self, model: &str) -> PathBuf;

    /// Starts a process that has loaded its model.
    ///
    /// # Errors
    /// When it does not start, or ends.
    fn start(&self, entrant: &Entrant) -> Result<Rival>;

    /// Starts a process that multiplies, without a model.
    ///
    /// # Errors
    /// When it does not start, or ends.
    fn multiply(&self, rival: &str, precision: Precision, threads: usize) -> Result<Rival>;

    /// Starts a process that takes a twentieth of one core.
    ///
    /// # Errors
    /// When it does not start.
    fn disturb(&self) -> Result<Disturbance>;
}

/// Runs the regimes. Each finished section is handed to `keep`, so that it survives a later failure.
///
/// # Errors
/// When a regime needs more threads than the device has; when a rival does not start, ends, or computes something else
/// than turbo; when `keep` fails.
pub fn run(
    regimes: &[Regime],
    rounds: Rounds,
    device: &Cpu,
    stage: &impl Stage,
    mut keep: impl FnMut(Section, &Provenance, &Summary) -> Result<()>,
) -> Result<()> {
    let threads = device.threads().get();
    if let Some(regime) = regimes.iter().find(|regime| !regime.can_run_with(threads)) {
        bail!(
            "{}: what a second thread brings is measured with 2 threads or more, got {threads}",
            regime.title()
        );
    }
    let mut timeline = Timeline::new()?;
    // Taken before anything is written: otherwise the run would find that it had changed the working tree itself.
    let begin = Provenance::here(device.name());
    let before = load::average();
    let ceilings = Ceilings::measure(device)?;
    let mut hall = Hall::new(device, ceilings, begin.clone(), stage, regimes)?;
    let plan = |regimes: &[Regime], seconds: f64, hall: &Hall<'_, _>| -> (Vec<Cost>, Vec<usize>) {
        let costs: Vec<Cost> = regimes.iter().map(|regime| hall.cost(regime)).collect();
        let times = rounds.of(&costs, seconds);
        (costs, times)
    };
    let (costs, times) = plan(regimes, timeline.elapsed(), &hall);
    eprintln!("{} regimes, about {}", regimes.len(), minutes(rounds::seconds(&costs, &times)));
    for (index, regime) in regimes.iter().enumerate() {
        // If the regimes so far took more or less time than estimated, there is less or more left for the rest.
        let (costs, times) = plan(&regimes[index..], timeline.elapsed(), &hall);
        let seconds = rounds::seconds(&costs[..1], &times[..1]);
        let rest = rounds::seconds(&costs[1..], &times[1..]);
        let title = format!("{}, {} rounds", regime.title(), times[0]);
        timeline.begin(&title, seconds, rest);
        let section = hall.section(regime, times[0], &mut timeline)?;
        let summary = Summary { load: load::Load { before, after: load::average() } };
        let provenance = Provenance { date: section.date.clone(), ..begin.clone() };
        keep(section, &provenance, &summary)?;
        hall.dismiss(&regimes[index + 1..]);
    }
    timeline.finish();
    Ok(())
}

/// The processes that are needed now or later, and what they are compared with.
struct Hall<'a, S> {
    device: &'a Cpu,
    /// The ceilings when the run began.
    ceilings: Ceilings,
    /// The time at which the run began, and its commit.
    begin: Provenance,
    stage: &'a S,
    floors: HashMap<String, Floor>,
    present: HashMap<Entrant, Rival>,
    /// Vectors of turbo in f32, by model.
    expected: HashMap<String, Vec<Vec<f32>>>,
    agreement: HashMap<Entrant, Agreement>,
}

impl<'a, S: Stage> Hall<'a, S> {
    fn new(
        device: &'a Cpu,
        ceilings: Ceilings,
        begin: Provenance,
        stage: &'a S,
        regimes: &[Regime],
    ) -> Result<Self> {
        let mut floors = HashMap::new();
        for regime in regimes {
            if !matches!(regime.work, Work::Products { .. }) && !floors.contains_key(&regime.model) {
                floors.insert(regime.model.clone(), Floor::new(&stage.checkpoint(&regime.model))?);
            }
        }
        let (present, expected, agreement) = (HashMap::new(), HashMap::new(), HashMap::new());
        Ok(Self { device, ceilings, begin, stage, floors, present, expected, agreement })
    }

    fn threads(&self) -> usize {
        self.device.threads().get()
    }

    /// The estimated time of a regime, from its floors and the known slowness of its rivals.
    fn cost(&self, regime: &Regime) -> Cost {
        let ms = |lens: &[u32]| {
            let floor = self.floors.get(&regime.model);
            floor.map_or(0.0, |floor| floor.ms(lens, regime.precision, &self.ceilings))
        };
        let absent = self.entrants(regime).into_iter().filter(|it| !self.present.contains_key(it));
        budget::estimate(regime, ms, absent.count())
    }

    /// The entrants of a regime with a model, turbo first. Where one and all threads are compared, each rival is a pair
    /// of entrants.
    fn entrants(&self, regime: &Regime) -> Vec<Entrant> {
        let threads = match regime.work {
            Work::Products { .. } => vec![],
            Work::Scaling(_) => vec![1, self.threads()],
            _ => vec![self.threads()],
        };
        let names = std::iter::once(TURBO).chain(regime.rivals.iter().map(String::as_str));
        let entrant = |rival: &str, threads| Entrant {
            rival: rival.to_owned(),
            model: regime.model.clone(),
            precision: regime.precision,
            threads,
        };
        names.flat_map(|rival| threads.iter().map(move |&threads| entrant(rival, threads))).collect()
    }

    /// Starts an entrant, unless it is running, and checks that it computes the same as turbo.
    fn admit(&mut self, entrant: &Entrant) -> Result<()> {
        if self.present.contains_key(entrant) {
            return Ok(());
        }
        if !self.expected.contains_key(&entrant.model) {
            let reference = Entrant {
                rival: TURBO.to_owned(),
                precision: Precision::F32,
                threads: self.threads(),
                model: entrant.model.clone(),
            };
            let mut turbo = self.stage.start(&reference)?;
            self.expected.insert(entrant.model.clone(), agree::expected(&mut turbo)?);
        }
        let mut rival = self.stage.start(entrant)?;
        let expected = &self.expected[&entrant.model];
        let agreement = agree::check(expected, &mut rival, entrant.precision.least_cosine())
            .with_context(|| format!("{} {}", entrant.model, entrant.precision.name()))?;
        self.agreement.insert(entrant.clone(), agreement);
        self.present.insert(entrant.clone(), rival);
        Ok(())
    }

    /// Ends entrants that are not needed any more.
    fn dismiss(&mut self, to_come: &[Regime]) {
        let needed: HashSet<Entrant> = to_come.iter().flat_map(|regime| self.entrants(regime)).collect();
        self.present.retain(|entrant, _| needed.contains(entrant));
    }

    /// Measures a regime.
    fn section(&mut self, regime: &Regime, rounds: usize, timeline: &mut Timeline) -> Result<Section> {
        let begin = timeline.elapsed();
        let entrants = self.entrants(regime);
        entrants.iter().try_for_each(|entrant| self.admit(entrant))?;
        let mut agreement: Vec<Agreement> =
            entrants.iter().map(|entrant| self.agreement[entrant].clone()).collect();
        let mut called: Vec<(&Entrant, Rival)> =
            entrants.iter().filter_map(|entrant| Some((entrant, self.present.remove(entrant)?))).collect();
        let rivals: Vec<&mut Rival> = called.iter_mut().map(|(_, rival)| rival).collect();
        let (rows, ceilings) = match &regime.work {
            Work::Products { shapes, rows } => {
                let plan =
                    products::Plan { shapes, rows, precision: regime.precision, others: &regime.rivals };
                let (rows, ceilings, near) =
                    products::run(plan, self.threads(), self.stage, rounds, timeline)?;
                agreement = near;
                (Rows::Products(rows), ceilings)
            }
            work => {
                let mut limit = Limit::new(&self.floors[&regime.model], self.device);
                (self.rows(work, regime.precision, rivals, &mut limit, rounds, timeline)?, limit.ceilings())
            }
        };
        self.present.extend(called.into_iter().map(|(entrant, rival)| (entrant.clone(), rival)));
        Ok(Section {
            name: regime.name.to_owned(),
            model: regime.model.clone(),
            precision: regime.precision,
            date: record::now(),
            commit: self.begin.commit.clone(),
            processor: self.begin.processor.clone(),
            threads: self.threads(),
            method: rows.method(),
            rounds,
            seconds: (timeline.elapsed() - begin).round(),
            ceilings,
            agreement,
            rows,
        })
    }

    /// Measures the work of a regime with a model.
    fn rows(
        &self,
        work: &Work,
        precision: Precision,
        mut rivals: Vec<&mut Rival>,
        limit: &mut Limit<'_>,
        rounds: usize,
        timeline: &mut Timeline,
    ) -> Result<Rows> {
        Ok(match work {
            Work::Products { .. } => unreachable!("products need no model"),
            Work::Batches(batches) => {
                Rows::Batches(batches::run(batches, precision, &mut rivals, limit, rounds, timeline)?)
            }
            Work::Stream { lens, requests } => {
                Rows::Stream(stream::run((lens, *requests), &mut rivals, limit, rounds, timeline)?)
            }
            Work::Scaling(batches) => {
                let (mut rivals, mut pairs) = (rivals.into_iter(), Vec::new());
                while let (Some(one), Some(all)) = (rivals.next(), rivals.next()) {
                    if one.name() != all.name() {
                        bail!("{} and {} are no pair: one of each is missing", one.name(), all.name());
                    }
                    pairs.push(scaling::Pair { one, all });
                }
                let disturb = || self.stage.disturb();
                Rows::Scaling(scaling::run(batches, &mut pairs, disturb, limit, rounds, timeline)?)
            }
        })
    }
}

/// Whether sections with so many threads on a processor may join a record.
///
/// # Errors
/// When the record was measured with another number or on another processor, because its tables would compare what
/// cannot be compared.
pub fn fits(record: &Comparison, threads: usize, processor: &str) -> Result<()> {
    for before in &record.rows {
        if before.threads != threads {
            bail!(
                "the record is of {} threads, got {threads}: choose another --threads, or another --out",
                before.threads
            );
        }
        if before.processor != processor {
            bail!("the record is of {}, this is {processor}: choose another --out", before.processor);
        }
    }
    Ok(())
}

/// Puts a section of a new run into the record, in place of the one that measured the same before.
///
/// # Errors
/// As [`fits`].
pub fn merge(
    before: Option<Comparison>,
    section: Section,
    (provenance, summary): (Provenance, Summary),
) -> Result<Comparison> {
    if let Some(before) = &before {
        fits(before, section.threads, &section.processor)?;
    }
    let data = Data { threads: section.threads };
    let mut rows = before.map(|before| before.rows).unwrap_or_default();
    record::replace(&mut rows, section, |it| (it.name.clone(), it.model.clone(), it.precision));
    rows.sort_by_key(|section| {
        let known = regime::all();
        known.iter().position(|regime| {
            (regime.name, &regime.model, regime.precision)
                == (section.name.as_str(), &section.model, section.precision)
        })
    });
    Ok(Record { figure: "cpu".to_owned(), provenance, data, summary, rows })
}

/// Writes the record, the page and the pictures to `out`. The page has links to those of other processors in folders
/// below.
///
/// # Errors
/// When they cannot be written.
pub fn write(comparison: &Comparison, out: &Path) -> Result<()> {
    comparison.write(out)?;
    let notes = std::fs::read_to_string(out.join(page::NOTES)).unwrap_or_default();
    let file = out.join("cpu.md");
    record::write_whole(&file, &page::page(comparison, &notes, &place::others(out)?))?;
    picture::draw(comparison, out)
}

/// Puts the tables into the file `readme`, between the two comments that mark their place.
///
/// # Errors
/// When the file cannot be read or written, or has no such place.
pub fn write_into(readme: &Path, comparison: &Comparison) -> Result<()> {
    const MARKS: (&str, &str) = ("<!-- written by `cargo xtask bench cpu` -->\n", "<!-- until here -->");
    let text =
        std::fs::read_to_string(readme).with_context(|| format!("cannot read {}", readme.display()))?;
    let place = || format!("{}: there is no `{}` before `{}`", readme.display(), MARKS.0.trim(), MARKS.1);
    let (head, rest) = text.split_once(MARKS.0).with_context(place)?;
    let (_, tail) = rest.split_once(MARKS.1).with_context(place)?;
    let text = format!("{head}{}{}{}{tail}", MARKS.0, page::short(comparison), MARKS.1);
    record::write_whole(readme, &text)
}
