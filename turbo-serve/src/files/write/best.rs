//! Writing only the best rows, best first.

use std::{cmp::Ordering, collections::BinaryHeap, io};

use super::{Answer, Sink};

/// `sink`, or a sink that writes the `best` rows to it at the end.
pub(super) fn only(best: Option<usize>, sink: Box<dyn Sink>) -> Box<dyn Sink> {
    match best {
        Some(most) => Box::new(Best { most, kept: BinaryHeap::new(), sink }),
        None => sink,
    }
}

struct Best {
    most: usize,
    /// The worst on top.
    kept: BinaryHeap<Scored>,
    sink: Box<dyn Sink>,
}

/// A row, of which the greater one is the worse. Of equal scores the later row is worse, and NaN is worse than any
/// number.
struct Scored {
    score: f32,
    index: u64,
    answer: Answer,
}

impl Ord for Scored {
    fn cmp(&self, other: &Self) -> Ordering {
        let numbers = other.score.partial_cmp(&self.score);
        numbers
            .unwrap_or_else(|| self.score.is_nan().cmp(&other.score.is_nan()))
            .then(self.index.cmp(&other.index))
    }
}

impl PartialOrd for Scored {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Scored {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Scored {}

impl Sink for Best {
    /// Keeps the answer if it is among the best so far. Rows without a score are dropped.
    fn write(&mut self, index: u64, answer: Result<&Answer, &str>) -> io::Result<()> {
        if let Ok(answer @ Answer::Score { score, .. }) = answer {
            self.kept.push(Scored { score: *score, index, answer: answer.clone() });
            if self.kept.len() > self.most {
                self.kept.pop();
            }
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sink.sync()
    }

    fn close(&mut self) -> io::Result<()> {
        for Scored { index, answer, .. } in std::mem::take(&mut self.kept).into_sorted_vec() {
            self.sink.write(index, Ok(&answer))?;
        }
        self.sink.close()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    struct Seen(Arc<Mutex<Vec<u64>>>);

    impl Sink for Seen {
        fn write(&mut self, index: u64, _: Result<&Answer, &str>) -> io::Result<()> {
            self.0.lock().unwrap().push(index);
            Ok(())
        }

        fn sync(&mut self) -> io::Result<()> {
            Ok(())
        }

        fn close(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn best(most: usize, scores: &[f32]) -> Vec<u64> {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut sink = only(Some(most), Box::new(Seen(Arc::clone(&seen))));
        for (index, &score) in scores.iter().enumerate() {
            sink.write(index as u64, Ok(&Answer::Score { score, text: None })).unwrap();
        }
        sink.write(99, Err("bad")).unwrap();
        sink.close().unwrap();
        seen.lock().unwrap().clone()
    }

    #[test]
    fn the_best_come_first_and_equals_in_their_order() {
        assert_eq!(best(3, &[0.1, 0.9, f32::NAN, 0.5, 0.9]), [1, 4, 3]);
        assert_eq!(best(9, &[f32::NAN, 0.0, -0.0, -1.0]), [1, 2, 3, 0]);
        assert!(best(0, &[1.0]).is_empty());
    }
}
