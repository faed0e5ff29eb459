//! Separates the queries of a few tokens from the product that they share with keys and values, which all tokens need.
//!
//! This undoes the merging of projections where rows of the merged product are picked for the queries alone:
//! `pick(x · (q ‖ k ‖ v)ᵀ)` becomes `pick(x · qᵀ)` beside `x · (k ‖ v)ᵀ`. A matrix that was published as one is not
//! split. If another attention has queries for all tokens, of the same columns, it gets a product of queries of its
//! own, with the same weights. Nodes that score heads with positions are redirected to the parts, too.

use std::ops::Range;

use crate::{
    graph::{Graph, NamedWeight, Node, Storage, ValueId},
    op::{HeadColumns, Op},
};

pub(super) fn rewrite_one(graph: &mut Graph) -> bool {
    let Some(shared) = (0..graph.nodes.len()).find_map(|product| shared(graph, product)) else {
        return false;
    };
    let Node { op, inputs, output: merged, layer } = graph.nodes[shared.product].clone();
    let [queries, others] = split_constants(graph, &inputs, &shared.parts);
    let split = Split::of(graph, merged, &shared);
    let columns = &shared.columns;

    let picked = graph.nodes[shared.pick].output;
    graph.values[picked.index()].shape = graph.value(picked).shape.with_columns(columns.len());
    graph.nodes[shared.pick].inputs[0] = split.of_few;
    redirect_attention(&mut graph.nodes[shared.few], picked, split.of_others, columns);
    if let (Some(all), Some(of_all)) = (shared.all, split.of_all) {
        redirect_attention(&mut graph.nodes[all], of_all, split.of_others, columns);
    }
    for &scorer in &shared.scorers {
        redirect_scorer(&mut graph.nodes[scorer], merged, &split, columns);
    }
    graph.nodes[shared.product] = Node { op, inputs: others, output: split.of_others, layer };
    for output in split.of_all.into_iter().chain([split.of_few]) {
        graph.nodes.insert(shared.product, Node { op, inputs: queries.clone(), output, layer });
    }
    true
}

/// The inputs of the product of queries and of the product of everything else, made of those of the shared product.
fn split_constants(graph: &mut Graph, inputs: &[ValueId], parts: &Range<usize>) -> [Vec<ValueId>; 2] {
    let [mut queries, mut others] = [vec![inputs[0]], vec![inputs[0]]];
    for &constant in &inputs[1..] {
        let tensors = tensors(graph, constant).to_vec();
        queries.push(graph.stack(tensors[parts.clone()].to_vec()));
        others.push(graph.stack([&tensors[..parts.start], &tensors[parts.end..]].concat()));
    }
    [queries, others]
}

/// The results of the products that replace a shared one.
struct Split {
    /// The queries, of which rows are picked.
    of_few: ValueId,
    /// The queries of all rows, where something reads them.
    of_all: Option<ValueId>,
    /// Everything but the queries.
    of_others: ValueId,
}

impl Split {
    fn of(graph: &mut Graph, merged: ValueId, Shared { all, scorers, columns, .. }: &Shared) -> Self {
        let scores_all_queries = |&scorer: &usize| {
            let node = &graph.nodes[scorer];
            node.inputs[0] == merged
                && matches!(node.op, Op::PositionScores { heads, .. } if columns.contains(&heads.first))
        };
        let are_all_read = all.is_some() || scorers.iter().any(scores_all_queries);
        let width = graph.value(merged).shape.last_fixed().unwrap_or(0);
        let mut rows_of = |width| {
            let shape = graph.value(merged).shape.with_columns(width);
            graph.add_value(shape, Storage::Activation)
        };
        let (of_few, of_others) = (rows_of(columns.len()), rows_of(width - columns.len()));
        Split { of_few, of_all: are_all_read.then(|| rows_of(columns.len())), of_others }
    }
}

/// Lets an attention read its queries from `queries`, and keys and values from `others`, which is without `columns`.
fn redirect_attention(node: &mut Node, queries: ValueId, others: ValueId, columns: &Range<usize>) {
    node.inputs[..3].copy_from_slice(&[queries, others, others]);
    if let Op::Attention { q, k, v, .. } = &mut node.op {
        q.first = 0;
        for heads in [k, v] {
            heads.first = without(heads.first, columns);
        }
    }
}

/// Lets a node that scores heads with positions read the product that has them.
fn redirect_scorer(node: &mut Node, merged: ValueId, split: &Split, columns: &Range<usize>) {
    let Op::PositionScores { heads, .. } = &mut node.op else { return };
    let of_queries = columns.contains(&heads.first);
    heads.first = if of_queries { heads.first - columns.start } else { without(heads.first, columns) };
    if node.inputs[0] == merged {
        node.inputs[0] =
            if of_queries { split.of_all.expect("some score of all queries") } else { split.of_others };
    }
}

/// Where heads that begin at column `first` begin without `columns`, which they are apart from.
fn without(first: usize, columns: &Range<usize>) -> usize {
    if first >= columns.end { first - columns.len() } else { first }
}

/// A product of queries, keys and values, of which rows are picked for the queries.
struct Shared {
    product: usize,
    pick: usize,
    /// The attention whose queries are the picked rows.
    few: usize,
    /// An attention of the same columns in which all rows have queries.
    all: Option<usize>,
    /// The nodes that score with positions, of all rows or of the picked ones.
    scorers: Vec<usize>,
    /// The columns of the queries.
    columns: Range<usize>,
    /// The tensors of the queries, among those that were merged into the matrix.
    parts: Range<usize>,
}

fn shared(graph: &Graph, product: usize) -> Option<Shared> {
    let node = &graph.nodes[product];
    if !matches!(node.op, Op::MatMul | Op::Linear { activation: None }) {
        return None;
    }
    let merged = node.output;
    let is_kept = |value: ValueId| graph.value(value).storage == Storage::Activation;
    if !is_kept(merged) {
        return None;
    }
    let (mut scorers, mut readers) = scorers_and_others(graph, merged);
    let picks = |reader: &usize| matches!(graph.nodes[*reader].op, Op::Pool(_));
    let pick = readers.remove(readers.iter().position(picks)?);
    let picked = graph.nodes[pick].output;
    let (of_picked, others) = scorers_and_others(graph, picked);
    let few = others.first().copied().filter(|_| others.len() == 1 && is_kept(picked))?;
    readers.remove(readers.iter().position(|&reader| reader == few)?);
    let (all, []) = (readers.pop(), &readers[..]) else { return None };

    let heads = |attention: usize, queries: ValueId| match graph.nodes[attention].op {
        Op::Attention { q, k, v, .. } => {
            (graph.nodes[attention].inputs[..3] == [queries, merged, merged]).then_some([q, k, v])
        }
        _ => None,
    };
    let [q, k, v] = heads(few, picked)?;
    if all.is_some_and(|all| heads(all, merged) != Some([q, k, v])) {
        return None;
    }
    let columns = q.first..q.end();
    let is_apart = |heads: HeadColumns| heads.end() <= columns.start || heads.first >= columns.end;
    let scores = |scorer: &usize| match graph.nodes[*scorer].op {
        Op::PositionScores { heads, .. } => Some(heads),
        _ => None,
    };
    let apart = is_apart(k)
        && is_apart(v)
        && of_picked.iter().filter_map(scores).all(|heads| heads == q)
        && scorers.iter().filter_map(scores).all(|heads| heads == q || is_apart(heads));
    scorers.extend(of_picked);
    let parts = parts(tensors(graph, node.inputs[1]), &columns)?;
    let alike = node.inputs[2..].iter().all(|&bias| {
        let rows = |tensors: &[NamedWeight]| tensors.iter().map(|part| part.shape[0]).collect::<Vec<_>>();
        rows(tensors(graph, bias)) == rows(tensors(graph, node.inputs[1]))
    });
    (apart && alike).then_some(Shared { product, pick, few, all, scorers, columns, parts })
}

/// The readers of `value` that score with positions, and the others.
fn scorers_and_others(graph: &Graph, value: ValueId) -> (Vec<usize>, Vec<usize>) {
    let readers = (0..graph.nodes.len()).filter(|&reader| graph.nodes[reader].inputs.contains(&value));
    readers.partition(|&reader| matches!(graph.nodes[reader].op, Op::PositionScores { .. }))
}

/// The tensors that hold exactly these rows, if there are such and there are others too.
fn parts(tensors: &[NamedWeight], rows: &Range<usize>) -> Option<Range<usize>> {
    let begins_at = |row: usize| {
        let begins = tensors.iter().scan(0, |begin, part| {
            *begin += part.shape[0];
            Some(*begin)
        });
        std::iter::once(0).chain(begins).position(|begin| begin == row)
    };
    let parts = begins_at(rows.start)?..begins_at(rows.end)?;
    (parts.len() < tensors.len()).then_some(parts)
}

fn tensors(graph: &Graph, constant: ValueId) -> &[NamedWeight] {
    match &graph.value(constant).storage {
        Storage::Weight(tensors) => tensors,
        _ => &[],
    }
}
