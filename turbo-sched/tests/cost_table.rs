//! The padded cost table: what it answers, what it refuses, what it learns.

use proptest::collection::vec;
use proptest::prelude::*;
use turbo_sched::{BatchTotal, CostRows, CostTable, SchedError, Source};

fn table(points: &[(u32, usize, f64)]) -> CostTable {
    let points = points.iter().map(|&(len, size, cost)| (len, size, BatchTotal(cost)));
    CostTable::from_measurements(points).expect("the points of these tests are valid")
}

/// Checks costs and sources, one `(seq_len, batch_size, cost, source)` a line.
fn check(table: &CostTable, expected: &[(u32, usize, f64, Source)]) {
    for &(len, size, cost, source) in expected {
        let got = table.estimate(len, size);
        let close = (got.cost.0 - cost).abs() <= 1e-12 * cost;
        assert!(close && got.source == source, "({len}, {size}): {got:?} instead of {cost} {source:?}");
    }
}

use Source::{Extrapolated as E, Interpolated as I, Measured as M};

#[test]
fn a_full_grid_is_linear_between_its_points() {
    let grid = table(&[(10, 1, 2.0), (10, 4, 5.0), (30, 1, 4.0), (30, 4, 13.0)]);
    check(
        &grid,
        &[
            (10, 1, 2.0, M),
            (30, 4, 13.0, M),
            (20, 1, 3.0, I),  // between lengths
            (10, 2, 3.0, I),  // between batch sizes
            (20, 2, 5.0, I),  // between both: 3 at length 10, 7 at length 30
            (5, 1, 2.0, E),   // below the first length: flat
            (40, 1, 5.0, E),  // beyond the last length: its last slope, 2 per 20
            (10, 6, 7.0, E),  // beyond the last batch size: its last slope, 1
            (30, 6, 19.0, E), // likewise, 3
            (40, 6, 25.0, E), // beyond both
        ],
    );
}

#[test]
fn one_length_is_flat_and_one_batch_size_in_proportion() {
    check(
        &table(&[(10, 1, 2.0), (10, 2, 3.0)]),
        &[(1, 1, 2.0, E), (10, 2, 3.0, M), (9999, 2, 3.0, E), (10, 4, 5.0, E)],
    );
    check(&table(&[(10, 4, 8.0)]), &[(10, 4, 8.0, M), (10, 2, 4.0, E), (10, 8, 16.0, E), (99, 4, 8.0, E)]);
}

#[test]
fn a_falling_column_is_raised_to_its_running_maximum() {
    let falling = table(&[(10, 1, 5.0), (20, 1, 3.0), (30, 1, 9.0), (40, 1, 7.0)]);
    check(
        &falling,
        &[
            (10, 1, 5.0, M),
            (20, 1, 5.0, M),
            (25, 1, 7.0, I),
            (30, 1, 9.0, M),
            (35, 1, 9.0, I),
            (50, 1, 9.0, E),
        ],
    );
}

#[test]
fn the_cost_may_fall_with_the_batch_size() {
    check(&table(&[(10, 7, 9.0), (10, 8, 6.0)]), &[(10, 7, 9.0, M), (10, 8, 6.0, M), (10, 9, 6.0, E)]);
}

#[test]
fn a_guess_never_overrules_a_measurement() {
    // The short length was measured alone: twice as many would cost 20 by proportion. The long length says 12.
    let sparse = table(&[(10, 1, 10.0), (30, 1, 11.0), (30, 2, 12.0)]);
    check(&sparse, &[(10, 2, 12.0, E), (30, 2, 12.0, M)]);
    // And a guess at a long length is no cheaper than a measurement at a short one.
    let sparse = table(&[(10, 1, 10.0), (10, 2, 30.0), (30, 1, 11.0)]);
    check(&sparse, &[(30, 2, 30.0, E)]);
}

#[test]
fn rows_of_both_kinds_make_the_same_table() {
    let json = [r#"{"batch_total":[[10,[4,6]],[20,[5,10]]]}"#, r#"{"per_request":[[10,[4,3]],[20,[5,5]]]}"#];
    for json in json {
        let rows: CostRows = serde_json::from_str(json).unwrap();
        let table = CostTable::try_from(rows).unwrap();
        check(&table, &[(10, 1, 4.0, M), (10, 2, 6.0, M), (15, 2, 8.0, I), (20, 2, 10.0, M)]);
    }
}

#[test]
fn the_largest_measured_batch_size_never_rises_with_length() {
    let ragged = table(&[
        (10, 1, 1.0),
        (10, 2, 1.0),
        (10, 4, 1.0),
        (20, 1, 2.0),
        (20, 2, 2.0),
        (30, 1, 3.0),
        (30, 4, 3.0),
    ]);
    for (len, largest) in [(1, 4), (10, 4), (11, 2), (20, 2), (30, 2), (99, 2)] {
        assert_eq!(ragged.largest_batch_size(len), largest, "{len}");
    }
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let of = |points: &[(u32, usize, f64)]| {
        let points = points.iter().map(|&(len, size, cost)| (len, size, BatchTotal(cost)));
        CostTable::from_measurements(points).unwrap_err().to_string()
    };
    for (points, message) in [
        (&[][..], "no measurement given, expected at least one"),
        (&[(7, 2, -1.0)], "cost of batch_size 2 at max_seq_len 7 must be finite and above 0, got -1"),
        (&[(7, 2, 0.0)], "cost of batch_size 2 at max_seq_len 7 must be finite and above 0, got 0"),
        (&[(7, 2, f64::NAN)], "cost of batch_size 2 at max_seq_len 7 must be finite and above 0, got NaN"),
        (&[(0, 2, 1.0)], "seq_len must be above 0, got 0"),
        (&[(7, 0, 1.0)], "batch_size must be above 0, got 0"),
        (&[(7, 2, 1.0), (7, 2, 1.5)], "batch_size 2 at seq_len 7 is given twice"),
    ] {
        assert_eq!(of(points), message);
    }
    let wide: Vec<_> = (1..=600).map(|i| (i, i as usize, 1.0)).collect();
    assert_eq!(of(&wide), "600 lengths times 600 batch sizes exceed the 262144 cells of a table");

    let rows = |rows| CostTable::try_from(CostRows::BatchTotal(rows)).unwrap_err().to_string();
    let one = vec![BatchTotal(1.0)];
    assert_eq!(
        rows(vec![(20, one.clone()), (10, one.clone())]),
        "rows must ascend in seq_len, got 10 after 20"
    );
    assert_eq!(rows(vec![(20, one.clone()), (20, one)]), "rows must ascend in seq_len, got 20 after 20");
    assert_eq!(rows(vec![(20, vec![])]), "the row of seq_len 20 holds no cost, expected at least one");
}

#[test]
fn a_measured_cell_follows_new_measurements_slowly() {
    let mut learning = table(&[(10, 1, 10.0), (20, 1, 30.0)]);
    learning.update(10, 1, BatchTotal(20.0)).unwrap();
    check(&learning, &[(10, 1, 12.0, M), (20, 1, 30.0, M)]);
    for cost in [20.0, 200.0, 2.0] {
        (0..80).for_each(|_| learning.update(10, 1, BatchTotal(cost)).unwrap());
        assert!((learning.estimate(10, 1).cost.0 - cost).abs() < 1e-3);
    }
}

#[test]
fn slow_batches_of_one_length_do_not_hold_up_the_longer_ones() {
    let mut learning = table(&[(8, 1, 2e-3), (128, 1, 6e-3), (512, 1, 30e-3)]);
    let longer = |learning: &CostTable| learning.estimate(128, 1).cost.0;
    learning.update(8, 1, BatchTotal(1.0)).unwrap();
    assert!(longer(&learning) < 0.01, "one: {}", longer(&learning));
    (0..20).for_each(|_| learning.update(8, 1, BatchTotal(1.0)).unwrap());
    assert!(longer(&learning) > 0.5, "many: {}", longer(&learning));
    (0..40).for_each(|_| learning.update(128, 1, BatchTotal(6e-3)).unwrap());
    assert!(longer(&learning) < 0.01, "but they were measured since: {}", longer(&learning));
}

#[test]
fn a_batch_between_the_points_corrects_the_nearest() {
    let mut learning = table(&[(10, 1, 10.0), (20, 1, 20.0)]);
    learning.update(12, 1, BatchTotal(18.0)).unwrap(); // estimated 12: half as much again
    check(&learning, &[(10, 1, 11.0, M), (20, 1, 20.0, M)]);
}

#[test]
fn a_cell_that_was_guessed_becomes_measured() {
    let mut learning = table(&[(10, 1, 1.0), (10, 8, 4.0), (50, 1, 5.0)]);
    assert_eq!(learning.estimate(50, 8).source, E);
    learning.update(50, 8, BatchTotal(21.0)).unwrap();
    check(&learning, &[(50, 8, 21.0, M), (10, 8, 4.0, M), (50, 1, 5.0, M)]);
}

#[test]
fn a_batch_far_outside_opens_a_row_and_a_column() {
    let mut learning = table(&[(10, 1, 1.0), (100, 1, 10.0)]);
    learning.update(200, 4, BatchTotal(50.0)).unwrap();
    check(&learning, &[(200, 4, 50.0, M), (10, 1, 1.0, M), (100, 1, 10.0, M), (150, 4, 45.0, E)]);
    // A point just beyond the edge corrects the edge: not every length of the traffic opens a row.
    learning.update(210, 4, BatchTotal(50.0)).unwrap();
    assert_eq!(learning.estimate(210, 4).source, E);
}

#[test]
fn updates_that_cannot_be_change_nothing() {
    let mut learning = table(&[(10, 1, 1.0)]);
    for (len, size, cost) in [(10, 1, 0.0), (10, 1, f64::NAN), (0, 1, 1.0), (10, 0, 1.0)] {
        let error = learning.update(len, size, BatchTotal(cost)).unwrap_err();
        assert!(matches!(error, SchedError::Cost { .. } | SchedError::Zero { .. }), "{error}");
    }
    check(&learning, &[(10, 1, 1.0, M)]);
}

fn points() -> impl Strategy<Value = Vec<(u32, usize, f64)>> {
    let keys = proptest::collection::btree_map((1_u32..300, 1..40_usize), 1e-3_f64..1e3, 1..30);
    keys.prop_map(|points| points.into_iter().map(|((len, size), cost)| (len, size, cost)).collect())
}

proptest! {
    #[test]
    fn the_cost_never_falls_with_length_whatever_is_measured_and_learnt(
        points in points(), updates in vec((1_u32..600, 1..80_usize, 1e-3_f64..1e3), 0..30),
    ) {
        let mut learning = table(&points);
        for (len, size, cost) in updates {
            learning.update(len, size, BatchTotal(cost)).unwrap();
        }
        for size in [1, 2, 7, 39, 40, 41, 100] {
            let mut last = 0.0;
            for len in 1..700 {
                let cost = learning.estimate(len, size).cost.0;
                prop_assert!(cost.is_finite() && cost > 0.0 && cost >= last * (1.0 - 1e-12), "{cost} after {last}");
                last = cost;
            }
        }
    }

    #[test]
    fn the_table_stays_small_whatever_is_served(seed in any::<u32>()) {
        let mut learning = table(&[(16, 1, 1.0)]);
        for i in 0..2000_u32 {
            let mixed = (i ^ seed).wrapping_mul(0x9e37_79b9) >> 7;
            learning.update(1 + mixed % 8192, 1 + (mixed >> 13) as usize % 64, BatchTotal(1.0)).unwrap();
        }
        let measured = serde_json::to_string(&learning).unwrap().matches("seq_len").count();
        prop_assert!(measured < 2000, "{measured} cells after 2000 batches");
    }
}
