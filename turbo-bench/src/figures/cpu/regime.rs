//! The regimes, as data: each has a model, a precision, rivals, and work to measure.

use std::ops::RangeInclusive;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use turbo_kernels::DType;

/// How the products of the layers are computed; everything between them is f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32-bit floats
    F32,
    /// bfloat16 factors, sums in f32
    Bf16,
    /// 8-bit integers, sums in 32 bits
    Int8,
}

impl Precision {
    /// All precisions, the widest first.
    pub const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::Int8];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }

    /// Bytes of a weight.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
            Self::Int8 => 1,
        }
    }

    /// The smallest cosine with turbo in f32 that counts as the same. Arithmetic in f32 in another order stays within
    /// 1e-9. The other bounds allow for rounding the factors of every product, on random weights, which are no kinder
    /// than trained ones.
    #[must_use]
    pub fn least_cosine(self) -> f64 {
        match self {
            Self::F32 => 1.0 - 1e-6,
            Self::Bf16 => 0.9995,
            Self::Int8 => 0.99,
        }
    }

    /// The other engines that compute at this precision; the first is the best known.
    ///
    /// ONNX Runtime in bf16 and PyTorch in int8 were not tried. The page says why CTranslate2 in bf16 and OpenVINO in
    /// int8 are missing ([`super::page`]).
    #[must_use]
    pub fn rivals(self) -> &'static [&'static str] {
        match self {
            Self::F32 => &["ov", "ort", "ct2", "torch"],
            Self::Bf16 => &["ov", "torch"],
            Self::Int8 => &["ort", "ct2"],
        }
    }
}

/// Engines that multiply without a model, at every precision: the library whose products set the bar, where it can be
/// installed.
const MULTIPLIERS: &[&str] = if cfg!(target_arch = "x86_64") { &["onednn"] } else { &[] };

impl From<Precision> for DType {
    fn from(precision: Precision) -> Self {
        match precision {
            Precision::F32 => Self::F32,
            Precision::Bf16 => Self::Bf16,
            Precision::Int8 => Self::Int8,
        }
    }
}

/// A regime: the work, the engines and the precision.
#[derive(Clone, Debug, PartialEq)]
pub struct Regime {
    /// Its name for `--only`.
    pub name: &'static str,
    /// The model, by the name of its folder; weights are random.
    pub model: String,
    /// How the layers' products are computed.
    pub precision: Precision,
    /// The other engines.
    pub rivals: Vec<String>,
    /// The work.
    pub work: Work,
}

/// What a regime measures.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// Products with packed weights, alone: `(in_features, out_features)`, and row counts.
    Products {
        /// Sizes of the weights.
        shapes: Vec<(usize, usize)>,
        /// Rows of the other factor.
        rows: Vec<usize>,
    },
    /// Batches, each given by the lengths of its sequences.
    Batches(Vec<Vec<u32>>),
    /// Requests that all wait from the start, with lengths drawn uniformly.
    Stream {
        /// The shortest and the longest length.
        lens: RangeInclusive<usize>,
        /// Number of requests.
        requests: usize,
    },
    /// Batches with one thread, with all threads, and with a twentieth of one core taken by another process.
    Scaling(Vec<Vec<u32>>),
}

/// The names of all other engines.
#[must_use]
pub fn rivals() -> Vec<&'static str> {
    let mut all = Vec::new();
    for rival in Precision::ALL.into_iter().flat_map(Precision::rivals).chain(MULTIPLIERS) {
        if !all.contains(rival) {
            all.push(*rival);
        }
    }
    all
}

/// BERT's four shapes of a layer.
const SHAPES: [(usize, usize); 4] = [(768, 768), (768, 2304), (768, 3072), (3072, 768)];
/// Lengths of single requests.
const LENS: [u32; 10] = [5, 10, 20, 40, 80, 128, 200, 300, 400, 500];

/// Every regime, in the order in which they run: rivals that are loaded are used before others are loaded.
#[must_use]
pub fn all() -> Vec<Regime> {
    let of_model = |model: &str| {
        let f32 = |name, work| regime(name, model, Precision::F32, work);
        let mut long = f32("ragged-long", Work::Batches(vec![ragged(20, 500)]));
        long.rivals.retain(|rival| rival != "torch"); // minutes, for what `batches-long` shows already
        let mut scaling = f32("scaling", Work::Scaling(vec![vec![128], vec![500], equal(20, 40)]));
        scaling.rivals.truncate(1);
        vec![
            f32("batch1", Work::Batches(LENS.map(|len| vec![len]).to_vec())),
            f32("batches", Work::Batches([10, 40, 100].map(|len| equal(20, len)).to_vec())),
            f32("ragged", Work::Batches([10, 40, 100].map(|len| ragged(20, len)).to_vec())),
            f32("batches-long", Work::Batches(vec![equal(20, 500)])),
            long,
            f32("stream-short", Work::Stream { lens: 2..=100, requests: 200 }),
            f32("stream-long", Work::Stream { lens: 5..=500, requests: 200 }),
            regime("points", model, Precision::Bf16, points()),
            regime("points", model, Precision::Int8, points()),
            scaling,
        ]
    };
    let products = Precision::ALL.map(|precision| Regime {
        rivals: MULTIPLIERS.iter().map(|&rival| rival.to_owned()).collect(),
        work: Work::Products { shapes: SHAPES.to_vec(), rows: vec![1, 10, 40, 128, 500] },
        ..regime("products", "bert-base", precision, points())
    });
    [products.to_vec(), of_model("minilm"), of_model("bert-base")].concat()
}

fn regime(name: &'static str, model: &str, precision: Precision, work: Work) -> Regime {
    let rivals = precision.rivals().iter().map(|&rival| rival.to_owned()).collect();
    Regime { name, model: model.to_owned(), precision, rivals, work }
}

/// The batches at which the lower precisions are measured.
fn points() -> Work {
    Work::Batches(vec![vec![10], vec![128], vec![500], equal(20, 40)])
}

/// So many sequences of one length.
#[must_use]
pub fn equal(batch_size: usize, seq_len: u32) -> Vec<u32> {
    vec![seq_len; batch_size]
}

/// So many sequences, their lengths spread evenly up to `longest`, in an order that mixes them.
#[must_use]
pub fn ragged(batch_size: usize, longest: u32) -> Vec<u32> {
    let size = batch_size as u32;
    let step = (size / 2..size).find(|step| !size.is_multiple_of(*step) && step % 2 == 1).unwrap_or(1);
    (0..size).map(|i| (i * step % size + 1) * longest / size).map(|len| len.max(1)).collect()
}

impl Regime {
    /// The words by which `--only` may select it: its model, precision and name.
    #[must_use]
    pub fn words(&self) -> [&str; 3] {
        [&self.model, self.precision.name(), self.name]
    }

    /// Whether it can be measured with so many threads: the gain of a second thread needs two.
    #[must_use]
    pub fn can_run_with(&self, threads: usize) -> bool {
        threads > 1 || !matches!(self.work, Work::Scaling(_))
    }

    /// Its name in a progress line.
    #[must_use]
    pub fn title(&self) -> String {
        self.words().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::selection::Selection;

    #[test]
    fn ragged_batches_hold_about_half() {
        for longest in [10, 40, 100, 500] {
            let lens = ragged(20, longest);
            assert_eq!((lens.len(), lens.iter().max()), (20, Some(&longest)));
            let share = f64::from(lens.iter().sum::<u32>()) / f64::from(20 * longest);
            assert!((0.45..0.6).contains(&share), "{lens:?}");
            assert!(lens.windows(2).any(|pair| pair[0] > pair[1]), "in no order: {lens:?}");
        }
    }

    #[test]
    fn words_choose_among_all_regimes() {
        let (all, count) = (all(), |words: &[&str]| {
            let words = words.iter().map(|&word| word.to_owned()).collect();
            let all = all();
            let selection = Selection::new(words, all.iter().map(Regime::words)).unwrap();
            all.iter().filter(|regime| selection.takes(regime.words())).count()
        });
        assert_eq!(count(&[]), all.len());
        assert_eq!([count(&["minilm", "batch1"]), count(&["batch1"]), count(&["points", "int8"])], [1, 2, 2]);
        assert_eq!(count(&["batch1", "ragged", "bert-base"]), 2);
    }

    #[test]
    fn no_two_regimes_are_called_the_same() {
        let mut titles: Vec<String> = all().iter().map(Regime::title).collect();
        titles.sort();
        titles.dedup();
        assert_eq!(titles.len(), all().len());
    }
}
