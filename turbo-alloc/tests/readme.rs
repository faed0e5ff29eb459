//! The table in the README is what the example prints.

#[path = "../examples/compare/workload.rs"]
mod compare;

#[test]
fn the_table_is_the_output_of_compare() {
    let table = compare::report().unwrap().to_string();
    let readme = include_str!("../README.md");
    assert!(readme.contains(&table), "put this into README.md:\n{table}");
}
