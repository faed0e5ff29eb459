//! The split for any language: a queue and a cost table as JSON in, batches as JSON out.
//!
//! ```text
//! echo '{"lens":[77,17],"max_batch":20,"cost":{"batch_total":[[17,[2,3]],[77,[5,8]]]}}' \
//!   | cargo run -q -p turbo-sched --example split
//! {"batches":[[1],[0]],"cost":7.0}
//! ```
//! * `lens`: `seq_len` of each waiting request, at least 1, in any order.
//! * `cost`: rows `[seq_len, [cost of 1, of 2, …]]` in ascending length: of the whole batch under `batch_total`,
//!   divided by the batch size under `per_request`. Made non-decreasing in length by a running maximum first;
//!   linear between rows, flat below the first, along the last slope beyond the last. One row is flat.
//! * `max_batch`: requests per batch, at most. A row with fewer costs lowers it for all lengths above the row before
//!   it, including its own and all longer ones: no cost of a batch size is invented. (The running maximum thus holds,
//!   with a missing entry counting as infinite.)
//! * `batches`: indices into `lens`; `cost`: the sum over them, in the unit of the table, unrounded.
//!
//! Bad input: one line on standard error, exit status 1.

use std::num::NonZeroUsize;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};
use turbo_sched::{BatchTotal, Candidate, CostRows, CostTable, Layout, Limits, Planner, Policy};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    lens: Vec<u32>,
    max_batch: NonZeroUsize,
    cost: CostRows,
}

#[derive(Debug, PartialEq, Serialize)]
struct Answer {
    batches: Vec<Vec<usize>>,
    cost: f64,
}

fn main() -> ExitCode {
    let answer = std::io::read_to_string(std::io::stdin().lock())
        .map_err(|error| format!("cannot read standard input: {error}"))
        .and_then(|question| answer(&question))
        .and_then(|answer| serde_json::to_string(&answer).map_err(|error| error.to_string()));
    match answer {
        Ok(answer) => {
            println!("{answer}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("split: {error}");
            ExitCode::FAILURE
        }
    }
}

fn answer(question: &str) -> Result<Answer, String> {
    let Question { lens, max_batch, cost } =
        serde_json::from_str(question).map_err(|error| format!("bad input: {error}"))?;
    if let Some(index) = lens.iter().position(|&len| len == 0) {
        return Err(format!("lens[{index}] must be above 0, got 0"));
    }
    let table = CostTable::try_from(cost).map_err(|error| error.to_string())?;
    let stated = |candidate: &Candidate| match candidate.batch_size {
        size if size > table.largest_batch_size(candidate.max_seq_len) => BatchTotal::FORBIDDEN,
        _ => table.cost(candidate),
    };
    let mut planner = Planner::new(Policy::OptimalSplit, Limits::batch_size(max_batch), Layout::Padded);
    let batches = planner.plan(&lens, stated);
    Ok(Answer {
        batches: batches.iter().map(|batch| batch.members.to_vec()).collect(),
        cost: batches.total_cost().0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batches(question: &str) -> Vec<Vec<usize>> {
        answer(question).unwrap().batches
    }

    #[test]
    fn the_papers_figure_8_is_best_served_in_three_batches() {
        // A machine that pays 20 per batch and 1 per padded token.
        let lens = [77, 17, 63, 18, 52];
        let row = |len: u32| (len, (1..=5).map(|size| f64::from(20 + len * size)).collect::<Vec<_>>());
        let rows = serde_json::to_string(&[17, 18, 52, 63, 77].map(row)).unwrap();
        let question = |max_batch: u32| {
            format!(r#"{{"lens":{lens:?},"max_batch":{max_batch},"cost":{{"batch_total":{rows}}}}}"#)
        };
        let best = answer(&question(20)).unwrap();
        assert_eq!(best.batches, [vec![1, 3], vec![4, 2], vec![0]]);
        assert_eq!(best.cost, 56.0 + 146.0 + 97.0);
        // As the paper says of this queue: no batching costs more, and one batch costs more than no batching.
        let (one_by_one, one_batch) = (answer(&question(1)).unwrap().cost, f64::from(20 + 77 * 5));
        assert!(best.cost < one_by_one && one_by_one < one_batch);
    }

    #[test]
    fn both_kinds_of_cost_give_the_same_batches() {
        let total = r#"{"lens":[10,10,10],"max_batch":2,"cost":{"batch_total":[[10,[4,6]]]}}"#;
        let each = r#"{"lens":[10,10,10],"max_batch":2,"cost":{"per_request":[[10,[4,3]]]}}"#;
        assert_eq!(answer(total), answer(each));
        assert_eq!(answer(total).unwrap().cost, 10.0);
    }

    #[test]
    fn a_row_caps_the_batches_of_its_length_and_of_longer_ones() {
        let question = |lens| {
            format!(
                r#"{{"lens":{lens},"max_batch":9,"cost":{{"batch_total":[[10,[4,5,6]],[20,[5,6]],[30,[6,7,8]]]}}}}"#
            )
        };
        for (lens, sizes) in [("[10,9,8]", &[3][..]), ("[11,12,13]", &[1, 2]), ("[28,29,30]", &[1, 2])] {
            let got: Vec<_> = batches(&question(lens)).iter().map(Vec::len).collect();
            assert_eq!(got, sizes, "{lens}");
        }
    }

    #[test]
    fn an_empty_queue_costs_nothing() {
        let empty = answer(r#"{"lens":[],"max_batch":1,"cost":{"batch_total":[[10,[4]]]}}"#);
        assert_eq!(empty, Ok(Answer { batches: vec![], cost: 0.0 }));
    }

    #[test]
    fn bad_input_is_one_line_that_names_the_value() {
        for (question, part) in [
            ("", "EOF"),
            (r#"{"lens":[1],"max_batch":0,"cost":{"batch_total":[[1,[1]]]}}"#, "integer `0`"),
            (r#"{"lens":[-1],"max_batch":1,"cost":{"batch_total":[[1,[1]]]}}"#, "integer `-1`"),
            (r#"{"lens":[5,0],"max_batch":1,"cost":{"batch_total":[[1,[1]]]}}"#, "lens[1]"),
            (r#"{"lens":[1],"max_batch":1,"cost":{"batch_total":[]}}"#, "no measurement"),
            (r#"{"lens":[1],"max_batch":1,"cost":{"batch_total":[[7,[]]]}}"#, "seq_len 7"),
            (r#"{"lens":[1],"max_batch":1,"cost":{"batch_total":[[7,[1,-2]]]}}"#, "got -2"),
            (r#"{"lens":[1],"max_batch":1,"cost":{"batch_total":[[7,[1e999]]]}}"#, "number out of range"),
            (r#"{"lens":[1],"max_batch":1,"cost":{"batch_total":[[7,[1]],[5,[1]]]}}"#, "got 5 after 7"),
            (r#"{"lens":[1],"max_batch":1,"cost":{"total":[[7,[1]]]}}"#, "unknown variant `total`"),
        ] {
            let error = answer(question).unwrap_err();
            assert!(error.contains(part) && !error.contains('\n'), "{question}: {error}");
        }
    }
}
