//! The order in which rivals take turns.

use crate::workload;

/// The order in which `count` rivals take turns at item `index` of a round. It is drawn anew for each item, so that no
/// rival always follows the same one, and is the same on every machine.
pub(super) fn order(count: usize, round: usize, index: usize) -> Vec<usize> {
    let keys = workload::uniform(&(0..=1 << 30), count, (round as u64) << 32 | index as u64);
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|&who| keys[who]);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_follows_everyone_else_about_as_often() {
        const COUNT: usize = 5;
        let mut follows = [[0; COUNT]; COUNT];
        for (round, index) in (0..100).flat_map(|round| (0..10).map(move |index| (round, index))) {
            let order = order(COUNT, round, index);
            order.windows(2).for_each(|pair| follows[pair[0]][pair[1]] += 1);
            let mut all = order;
            all.sort_unstable();
            assert!(all.into_iter().eq(0..COUNT));
        }
        // 1000 orders of four neighbours each, over 20 pairs: 200 each, with a deviation of 13.
        for (first, second) in
            (0..COUNT).flat_map(|a| (0..COUNT).map(move |b| (a, b))).filter(|(a, b)| a != b)
        {
            let times = follows[first][second];
            assert!((150..=250).contains(&times), "{second} came after {first} {times} times");
        }
    }
}
