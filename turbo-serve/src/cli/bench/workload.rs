//! A stream of requests as one word, and the ways to cut it into batches.
//!
//! `uniform:5:500:200:seed0` is 200 lengths, uniform from 5 to 500, both included; always the same 200.

use std::{num::NonZeroUsize, str::FromStr};

/// A stream of requests, all waiting from the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Workload {
    /// As it was written.
    pub(super) spec: String,
    /// `seq_len` of each, in order of arrival.
    pub(super) lengths: Vec<u32>,
}

const SYNTAX: &str = "expected uniform:LO:HI:COUNT:seedS, such as uniform:5:500:200:seed0";
/// Most lengths of a stream.
const MOST_REQUESTS: u64 = 1_000_000;

impl FromStr for Workload {
    type Err = String;

    fn from_str(spec: &str) -> Result<Self, String> {
        let parts: Vec<&str> = spec.split(':').collect();
        let [kind, low, high, count, seed] = parts[..] else {
            return Err(format!("{} parts between colons, {SYNTAX}", parts.len()));
        };
        if kind != "uniform" {
            return Err(format!("unknown kind {kind:?}, {SYNTAX}"));
        }
        let number = |name: &str, text: &str| {
            text.parse::<u64>().map_err(|_| format!("{name} is {text:?} and no whole number, {SYNTAX}"))
        };
        let length = |name: &str, text: &str| {
            let length = number(name, text)?;
            u32::try_from(length)
                .ok()
                .filter(|&len| (1..u32::MAX).contains(&len))
                .ok_or(format!("{name} is {length}, expected a length of at least one token"))
        };
        let (low, high) = (length("LO", low)?, length("HI", high)?);
        if low > high {
            return Err(format!("LO is {low} and above HI, {high}"));
        }
        let count = number("COUNT", count)?;
        if !(1..=MOST_REQUESTS).contains(&count) {
            return Err(format!("COUNT is {count}, expected 1 to {MOST_REQUESTS}"));
        }
        let mut random =
            fastrand::Rng::with_seed(number("the seed", seed.strip_prefix("seed").unwrap_or(seed))?);
        let lengths = (0..count).map(|_| random.u32(low..=high)).collect();
        Ok(Self { spec: spec.to_owned(), lengths })
    }
}

/// Which requests share a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    /// One at a time.
    Single,
    /// In order of arrival, so many at a time.
    Naive(NonZeroUsize),
    /// In order of length, so many at a time.
    Sorted(NonZeroUsize),
    /// The cheapest cuts of the queue, by costs measured in this run.
    Dp,
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size = |digits: &str| digits.parse().ok();
        let sized = |prefix: &str| text.strip_prefix(prefix).and_then(size);
        match (text, sized("naive"), sized("sorted")) {
            ("single", ..) => Ok(Self::Single),
            ("dp", ..) => Ok(Self::Dp),
            (_, Some(size), _) => Ok(Self::Naive(size)),
            (_, _, Some(size)) => Ok(Self::Sorted(size)),
            _ => Err(format!(
                "unknown policy {text:?}, expected single, naive20, sorted20 (or another size) or dp"
            )),
        }
    }
}

impl std::fmt::Display for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Single => f.pad("single"),
            Self::Naive(size) => f.pad(&format!("naive{size}")),
            Self::Sorted(size) => f.pad(&format!("sorted{size}")),
            Self::Dp => f.pad("dp"),
        }
    }
}

impl Policy {
    /// `lengths` in batches. `cut` says how many consecutive requests each batch takes; [`Policy::Dp`] alone asks.
    pub(super) fn batches<E>(
        self,
        lengths: &[u32],
        cut: impl FnOnce(&[u32]) -> Result<Vec<usize>, E>,
    ) -> Result<Vec<Vec<u32>>, E> {
        let chunks = |lengths: &[u32], size: usize| lengths.chunks(size).map(<[u32]>::to_vec).collect();
        Ok(match self {
            Self::Single => chunks(lengths, 1),
            Self::Naive(size) => chunks(lengths, size.get()),
            Self::Sorted(size) => {
                let mut sorted = lengths.to_vec();
                sorted.sort_unstable();
                chunks(&sorted, size.get())
            }
            Self::Dp => {
                let mut rest = lengths;
                let mut take = |size| rest.split_off(..size).expect("the cuts are of this queue").to_vec();
                cut(lengths)?.into_iter().map(&mut take).collect()
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(spec: &str) -> Result<Vec<u32>, String> {
        spec.parse::<Workload>().map(|workload| workload.lengths)
    }

    #[test]
    fn a_workload_is_its_lengths() {
        let lengths = parse("uniform:5:500:9000:seed0").unwrap();
        // Times of different runs can be compared as long as these stay.
        assert_eq!(lengths[..3], [278, 52, 299]);
        assert_eq!((lengths.iter().min(), lengths.iter().max()), (Some(&5), Some(&500)));
        assert_ne!(parse("uniform:5:500:9000:seed1").unwrap(), lengths);
        assert_eq!(parse("uniform:5:500:3:0"), parse("uniform:5:500:3:seed0"));
        assert_eq!(parse("uniform:7:7:2:seed9"), Ok(vec![7, 7]));
    }

    #[test]
    fn a_wrong_workload_says_what_is_wrong() {
        let cases = [
            ("uniform:5:500", "3 parts between colons, expected uniform:LO:HI:COUNT:seedS"),
            ("normal:5:500:9:seed0", "unknown kind \"normal\", expected uniform"),
            ("uniform:five:500:9:seed0", "LO is \"five\" and no whole number"),
            ("uniform:0:500:9:seed0", "LO is 0, expected a length of at least one token"),
            ("uniform:5:4294967295:9:seed0", "HI is 4294967295, expected a length"),
            ("uniform:9:5:9:seed0", "LO is 9 and above HI, 5"),
            ("uniform:5:500:0:seed0", "COUNT is 0, expected 1 to 1000000"),
            ("uniform:5:500:9:seed", "the seed is \"\" and no whole number"),
            ("uniform:5:500:9:seed-1", "the seed is \"-1\" and no whole number"),
        ];
        for (spec, said) in cases {
            let error = parse(spec).unwrap_err();
            assert!(error.starts_with(said), "{spec}: {error}");
        }
    }

    #[test]
    fn policies_cut_the_stream() {
        let batches = |policy: &str| {
            let cut = |lengths: &[u32]| Ok::<_, ()>(vec![1, lengths.len() - 1]);
            policy.parse::<Policy>().unwrap().batches(&[5, 3, 9, 1], cut).unwrap()
        };
        assert_eq!(batches("single"), [[5], [3], [9], [1]]);
        assert_eq!(batches("naive3"), [vec![5, 3, 9], vec![1]]);
        assert_eq!(batches("sorted3"), [vec![1, 3, 5], vec![9]]);
        assert_eq!(batches("dp"), [vec![5], vec![3, 9, 1]]);
    }

    #[test]
    fn policies_are_read_as_they_are_written() {
        for text in ["single", "naive20", "sorted8", "dp"] {
            assert_eq!(text.parse::<Policy>().unwrap().to_string(), text);
        }
        for wrong in ["naive", "naive0", "sorted-1", "DP", ""] {
            assert!(wrong.parse::<Policy>().unwrap_err().contains("expected single, naive20"), "{wrong}");
        }
    }
}
