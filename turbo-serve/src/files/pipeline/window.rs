//! Rows that are computed together: sorted by length into batches, and returned in the order of the input.

use turbo_models::Encoded;

use super::{Answered, AnsweredRow, Compute, Item};

/// Rows in the order of the input.
pub(super) struct Window<K> {
    items: Vec<Item<K>>,
    tokens: usize,
}

impl<K> Default for Window<K> {
    fn default() -> Self {
        Self { items: Vec::new(), tokens: 0 }
    }
}

impl<K> Window<K> {
    pub(super) fn push(&mut self, item: Item<K>) {
        let inputs = item.row.iter().flat_map(|row| &row.inputs);
        self.tokens += inputs.map(|input| input.input_ids.len()).sum::<usize>();
        self.items.push(item);
    }

    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    pub(super) fn rows(&self) -> usize {
        self.items.len()
    }

    /// Computes all rows and empties the window; `None` when `go_on` returned `false` between two batches.
    pub(super) fn compute(
        &mut self,
        compute: &mut dyn Compute,
        batch_tokens: usize,
        go_on: impl Fn() -> bool,
    ) -> Result<Option<Answered<K>>, String> {
        let items = std::mem::take(self).items;
        let inputs: Vec<&Encoded> =
            items.iter().flat_map(|item| &item.row).flat_map(|row| &row.inputs).collect();
        let lens: Vec<usize> = inputs.iter().map(|input| input.input_ids.len()).collect();
        let mut outputs: Vec<Vec<f32>> = vec![Vec::new(); inputs.len()];
        for batch in batches(&lens, batch_tokens) {
            if !go_on() {
                return Ok(None);
            }
            let rows: Vec<&Encoded> = batch.iter().map(|&at| inputs[at]).collect();
            let computed = compute.run(&rows)?;
            if computed.len() != batch.len() {
                return Err(format!("{} outputs for {} inputs", computed.len(), batch.len()));
            }
            batch.iter().zip(computed).for_each(|(&at, output)| outputs[at] = output);
        }
        let mut outputs = outputs.into_iter();
        let mut answered = |Item { number, end, row }: Item<K>| AnsweredRow {
            number,
            end,
            row: row.map(|row| (row.kept, outputs.by_ref().take(row.inputs.len()).collect())),
        };
        Ok(Some(items.into_iter().map(&mut answered).collect()))
    }
}

/// Cuts inputs into batches of at most `most` tokens, the longest first, so that inputs of a batch are of similar
/// length. Each batch is a list of indices into `lens`.
fn batches(lens: &[usize], most: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lens.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(lens[at]));
    let (mut batches, mut tokens) = (Vec::<Vec<usize>>::new(), 0_usize);
    for at in order {
        tokens = tokens.saturating_add(lens[at]);
        match batches.last_mut() {
            Some(batch) if tokens <= most => batch.push(at),
            _ => {
                batches.push(vec![at]);
                tokens = lens[at];
            }
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn batches_are_full_and_of_similar_lengths() {
        assert_eq!(batches(&[3, 9, 4, 9, 1], 10), [vec![1], vec![3], vec![2, 0, 4]]);
        assert_eq!(batches(&[30, 2], 10), [vec![0], vec![1]]);
        assert!(batches(&[], 10).is_empty());
        assert_eq!(batches(&[3, 0, 9], usize::MAX), [vec![2, 0, 1]]);
        assert_eq!(batches(&[0], usize::MAX), [vec![0]]);
    }

    proptest! {
        #[test]
        fn every_input_is_in_one_batch(lens in prop::collection::vec(0usize..50, 0..60), most in 1usize..80) {
            let batches = batches(&lens, most);
            let mut all: Vec<usize> = batches.concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..lens.len()).collect::<Vec<_>>());
            for batch in &batches {
                let tokens: usize = batch.iter().map(|&at| lens[at]).sum();
                prop_assert!(tokens <= most || batch.len() == 1 || tokens == lens[batch[0]]);
            }
        }
    }
}
