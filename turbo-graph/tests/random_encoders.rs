//! Encoders assembled at random from parts of published ones: whatever fuses, the result is the same.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

mod common;

use common::{
    on_cpu, sequences,
    twin::{self, distance},
    unfolded_plan,
};
use proptest::prelude::*;
use turbo_alloc::check;
use turbo_graph::{
    Activation, AttentionMask, DType, Graph, GraphBuilder, GraphError, HeadColumns, Input, LayoutKind, Pass,
    Pooling, PositionBuckets, Program, Rhs, Routing, Staging, ValueId, dim::Extents, passes,
};

const HIDDEN: usize = 16;
const HEAD_DIM: usize = 4;
const HEADS: usize = 4;
const INNER: usize = 12;
const VOCABULARY: usize = 20;
const LENS: [usize; 3] = [5, 1, 12];
const OUTPUTS: [&str; 4] = ["tokens", "selected", "pooled", "queries"];

/// Where norms stand.
#[derive(Clone, Copy, Debug)]
enum Stream {
    Pre,
    Post,
    /// No norm and no sum.
    Bare,
}

#[derive(Clone, Copy, Debug)]
enum NormKind {
    Layer,
    LayerWithoutOffset,
    Rms,
}

#[derive(Clone, Copy, Debug)]
enum FeedForward {
    Plain,
    /// One published matrix for both halves.
    Halves,
    /// Two matrices, the activated one first or second in the product.
    Gate {
        first: bool,
    },
    /// Both factors are activated: no gate.
    BothActive,
    /// A row uses all of them: if it used some, rounding would now and then choose others.
    Experts,
}

/// A bias by distance.
#[derive(Clone, Copy, Debug)]
enum RelativeBias {
    Table,
    Alibi,
    /// Only if every head has keys of its own.
    Positions(PositionBuckets),
}

/// One layer; all layers of an encoder are drawn from one, or from two that alternate.
#[derive(Clone, Copy, Debug)]
struct Layer {
    stream: Stream,
    norm: NormKind,
    /// Of queries, keys and values; another number of rows has a bias than the others.
    biases: [bool; 3],
    /// Queries, keys and values published as one matrix, which then have one bias or none.
    published_as_one: bool,
    kv_heads: usize,
    head_norm: bool,
    /// Queries and keys turned, by one table or by two.
    rotary: Option<bool>,
    mask: AttentionMask,
    scale: bool,
    /// By distance: of buckets, or by slopes.
    relative_bias: Option<RelativeBias>,
    out_bias: bool,
    feed_forward: FeedForward,
    feed_forward_bias: bool,
    activation: Activation,
}

#[derive(Clone, Debug)]
struct Encoder {
    layers: Vec<Layer>,
    count: u32,
    pooling: Pooling,
    /// Vocabulary logits are pooled, or those of selected tokens are an output.
    head: Option<Activation>,
    selects: bool,
    /// The rows of all tokens are an output too.
    shows_tokens: bool,
    /// So is a projection of the first layer.
    shows_queries: bool,
}

fn layers() -> impl Strategy<Value = Layer> {
    use prop::sample::select;
    let norms = (
        select(vec![Stream::Pre, Stream::Post, Stream::Bare]),
        select(vec![NormKind::Layer, NormKind::LayerWithoutOffset, NormKind::Rms]),
    );
    let projections =
        (any::<[bool; 3]>(), any::<bool>(), select(vec![1, 2, 4]), any::<bool>(), any::<Option<bool>>());
    let masks = vec![AttentionMask::Full, AttentionMask::Causal, AttentionMask::Window { reach: 2 }];
    let biases = vec![
        RelativeBias::Table,
        RelativeBias::Alibi,
        RelativeBias::Positions(PositionBuckets { span: 5, max_distance: Some(9) }),
        RelativeBias::Positions(PositionBuckets { span: 4, max_distance: None }),
    ];
    let scores = (select(masks), any::<bool>(), prop::option::of(select(biases)), any::<bool>());
    let kinds = vec![
        FeedForward::Plain,
        FeedForward::Halves,
        FeedForward::Gate { first: true },
        FeedForward::Gate { first: false },
        FeedForward::BothActive,
        FeedForward::Experts,
    ];
    let feed_forward = (select(kinds), any::<bool>(), select(Activation::ALL.to_vec()));
    (norms, projections, scores, feed_forward).prop_map(
        |((stream, norm), (biases, published_as_one, kv_heads, head_norm, rotary), scores, feed_forward)| {
            let (mask, scale, relative_bias, out_bias) = scores;
            let (feed_forward, feed_forward_bias, activation) = feed_forward;
            Layer {
                stream,
                norm,
                biases,
                published_as_one,
                kv_heads,
                head_norm,
                rotary,
                mask,
                scale,
                relative_bias,
                out_bias,
                feed_forward,
                feed_forward_bias,
                activation,
            }
        },
    )
}

fn encoders() -> impl Strategy<Value = Encoder> {
    let pooling = prop::sample::select(Pooling::ALL.to_vec());
    let head = prop::option::of(prop::sample::select(Activation::ALL.to_vec()));
    let layers = prop::collection::vec(layers(), 1..3);
    (layers, 1..5_u32, pooling, head, any::<bool>(), any::<bool>(), prop::bool::weighted(0.2)).prop_map(
        |(layers, count, pooling, head, selects, shows_tokens, shows_queries)| Encoder {
            layers,
            count,
            pooling,
            head,
            selects,
            shows_tokens,
            shows_queries,
        },
    )
}

/// A builder and the name of the layer that is being drawn.
struct Pencil {
    g: GraphBuilder,
    name: String,
}

type Drawn = Result<ValueId, GraphError>;

impl Pencil {
    fn weight(&mut self, part: &str, shape: &[usize]) -> ValueId {
        let name = format!("{}.{part}", self.name);
        self.g.weight(&name, shape)
    }

    fn product(&mut self, part: &str, x: ValueId, (k, n): (usize, usize), bias: bool) -> Drawn {
        let weight = self.weight(part, &[n, k]);
        let product = self.g.matmul(x, weight)?;
        match bias {
            true => {
                let bias = self.weight(&format!("{part}.bias"), &[n]);
                self.g.add_bias(product, bias)
            }
            false => Ok(product),
        }
    }

    fn norm(&mut self, part: &str, x: ValueId, kind: NormKind) -> Drawn {
        let gain = self.weight(&format!("{part}.gain"), &[HIDDEN]);
        match kind {
            NormKind::Rms => self.g.rms_norm(x, gain, 1e-6),
            NormKind::LayerWithoutOffset => self.g.layer_norm(x, gain, None, 1e-5),
            NormKind::Layer => {
                let offset = self.weight(&format!("{part}.offset"), &[HIDDEN]);
                self.g.layer_norm(x, gain, Some(offset), 1e-5)
            }
        }
    }

    /// Both halves of a layer, each with its norm and sum where the stream has them.
    fn layer(&mut self, layer: &Layer, shown: &mut Option<ValueId>, x: ValueId) -> Drawn {
        let attended = self.half(layer, "attention", x, |pencil, x| pencil.attention(layer, shown, x))?;
        self.half(layer, "feed_forward", attended, |pencil, x| pencil.feed_forward(layer, x))
    }

    fn half(
        &mut self,
        layer: &Layer,
        part: &str,
        x: ValueId,
        inner: impl FnOnce(&mut Self, ValueId) -> Drawn,
    ) -> Drawn {
        let norm = format!("{part}.norm");
        match layer.stream {
            Stream::Bare => inner(self, x),
            Stream::Pre => {
                let normed = self.norm(&norm, x, layer.norm)?;
                let computed = inner(self, normed)?;
                self.g.add(x, computed)
            }
            Stream::Post => {
                let computed = inner(self, x)?;
                let sum = self.g.add(computed, x)?;
                self.norm(&norm, sum, layer.norm)
            }
        }
    }

    fn attention(&mut self, layer: &Layer, shown: &mut Option<ValueId>, x: ValueId) -> Drawn {
        let counts = [HEADS, layer.kv_heads, layer.kv_heads];
        let mut places = counts.map(|num_heads| HeadColumns { first: 0, num_heads, head_dim: HEAD_DIM });
        let mut rows = [x; 3];
        if layer.published_as_one {
            (places[1].first, places[2].first) = (places[0].end(), places[0].end() + places[1].width());
            rows = [self.product("qkv", x, (HIDDEN, places[2].end()), layer.biases[0])?; 3];
        } else {
            for (index, part) in ["q", "k", "v"].into_iter().enumerate() {
                rows[index] = self.product(part, x, (HIDDEN, places[index].width()), layer.biases[index])?;
            }
        }
        shown.get_or_insert(rows[0]);
        for index in 0..2 {
            if layer.head_norm {
                let gain = self.weight(&format!("{index}.norm.gain"), &[HEAD_DIM]);
                rows[index] = self.g.head_rms_norm(rows[index], places[index], gain, 1e-6)?;
                places[index].first = 0;
            }
            if let Some(one_table) = layer.rotary {
                let table = self.g.rotary_table(&[1.0, if one_table { 0.1 } else { 0.1 + index as f64 }], 16);
                rows[index] = self.g.rotary(rows[index], places[index], table)?;
                places[index].first = 0;
            }
        }
        let [q, k, v] = [0, 1, 2].map(|index| self.g.split_heads_at(rows[index], places[index]));
        let mut scores = self.g.batched_matmul(q?, k?, Rhs::Transposed)?;
        if layer.scale {
            scores = self.g.scale(scores, 0.5)?;
        }
        scores = match layer.relative_bias {
            None => scores,
            Some(RelativeBias::Table) => {
                let table = self.g.weight("relative", &[8, HEADS]);
                self.g.add_relative_bias(scores, table, 8, 9)?
            }
            Some(RelativeBias::Alibi) => self.g.add_alibi(scores)?,
            Some(RelativeBias::Positions(_)) if layer.kv_heads != HEADS => scores,
            Some(RelativeBias::Positions(positions)) => {
                let mut met = [scores; 2];
                for index in 0..2 {
                    let table = self.weight(&format!("{index}.positions"), &[positions.count(), HIDDEN]);
                    met[index] = self.g.position_scores(rows[index], places[index], table, positions)?;
                }
                self.g.add_disentangled(scores, met, positions)?
            }
        };
        let scores = self.g.mask(scores, layer.mask)?;
        let probabilities = self.g.softmax(scores)?;
        let context = self.g.batched_matmul(probabilities, v?, Rhs::Normal)?;
        let context = self.g.merge_heads(context)?;
        self.product("o", context, (HIDDEN, HIDDEN), layer.out_bias)
    }

    fn feed_forward(&mut self, layer: &Layer, x: ValueId) -> Drawn {
        let (bias, activation) = (layer.feed_forward_bias, layer.activation);
        let mut inner_columns = INNER;
        let inner = match layer.feed_forward {
            FeedForward::Plain => {
                let wide = self.product("wide", x, (HIDDEN, INNER), bias)?;
                self.g.activate(wide, activation)?
            }
            FeedForward::Halves => {
                let wide = self.product("wide", x, (HIDDEN, 2 * INNER), bias)?;
                self.g.gate(wide, activation)?
            }
            FeedForward::Gate { first } => {
                let up = self.product("up", x, (HIDDEN, INNER), bias)?;
                let gate = self.product("gate", x, (HIDDEN, INNER), bias)?;
                let gate = self.g.activate(gate, activation)?;
                if first { self.g.mul(gate, up)? } else { self.g.mul(up, gate)? }
            }
            FeedForward::BothActive => {
                let up = self.product("up", x, (HIDDEN, INNER), bias)?;
                let gate = self.product("gate", x, (HIDDEN, INNER), !bias)?;
                let (up, gate) = (self.g.activate(up, activation)?, self.g.activate(gate, Activation::Tanh)?);
                self.g.mul(up, gate)?
            }
            FeedForward::Experts => {
                let routing = Routing { num_experts: 2, top_k: 2 };
                inner_columns *= routing.num_experts;
                let logits = self.product("router", x, (HIDDEN, routing.num_experts), false)?;
                let wide = self.product("wide", x, (HIDDEN, inner_columns), false)?;
                let wide = self.g.activate(wide, activation)?;
                self.g.weigh_experts(wide, logits, routing)?
            }
        };
        self.product("narrow", inner, (inner_columns, HIDDEN), bias)
    }
}

fn draw(encoder: &Encoder) -> Result<Graph, GraphError> {
    let mut pencil = Pencil { g: GraphBuilder::new("random"), name: "embeddings".to_owned() };
    let (table, ids) = (pencil.weight("words", &[VOCABULARY, HIDDEN]), pencil.g.input(Input::InputIds));
    let x = pencil.g.embed(table, ids)?;
    let mut x = pencil.norm("norm", x, encoder.layers[0].norm)?;
    let mut shown = None;
    for index in 0..encoder.count {
        pencil.g.layer(Some(index));
        pencil.name = format!("layer.{index}");
        x = pencil.layer(&encoder.layers[index as usize % encoder.layers.len()], &mut shown, x)?;
    }
    pencil.g.layer(None);
    pencil.name = "head".to_owned();
    let mut rows = pencil.norm("norm", x, NormKind::Layer)?;
    if encoder.shows_tokens {
        pencil.g.output("tokens", rows);
    }
    if encoder.selects {
        let selected = pencil.g.select(rows)?;
        let logits = pencil.product("decoder", selected, (HIDDEN, VOCABULARY), true)?;
        pencil.g.output("selected", logits);
    }
    if let Some(activation) = encoder.head {
        rows = pencil.product("decoder", rows, (HIDDEN, VOCABULARY), true)?;
        rows = pencil.g.activate(rows, activation)?;
    }
    let pooled = pencil.g.pool(rows, encoder.pooling)?;
    pencil.g.output("pooled", pooled);
    if let Some(queries) = shown.filter(|_| encoder.shows_queries) {
        pencil.g.output("queries", queries);
    }
    pencil.g.finish()
}

fn answers(graph: &Graph, layout: LayoutKind, passes: &[Pass]) -> Vec<f32> {
    answers_named(&OUTPUTS, graph, layout, passes, DType::F32)
}

fn answers_named(
    names: &[&str],
    graph: &Graph,
    layout: LayoutKind,
    passes: &[Pass],
    dtype: DType,
) -> Vec<f32> {
    let program = Program::compile(graph, layout, passes).unwrap().with_dtype(dtype);
    let mut executor = on_cpu(program);
    let mut batch = Staging::new();
    for ids in sequences(&LENS, VOCABULARY) {
        batch.push(&ids, &[]).unwrap();
        batch.select(&selected(&ids)).unwrap();
    }
    executor.run(&batch).unwrap();
    let outputs: Vec<_> = names.iter().filter_map(|name| executor.output(name)).collect();
    let mut values = Vec::new();
    for sequence in 0..LENS.len() {
        outputs.iter().for_each(|&output| executor.read(output, sequence, &mut values).unwrap());
    }
    values
}

fn selected(ids: &[u32]) -> [u32; 2] {
    [0, ids.len() as u32 / 2]
}

/// The outputs of the naive twin, and how far others may be from them.
fn expected(graph: &Graph) -> (Vec<f32>, f32) {
    let ids = sequences(&LENS, VOCABULARY);
    let picked: Vec<[u32; 2]> = ids.iter().map(|ids| selected(ids)).collect();
    let batch: Vec<twin::Sequence<'_>> =
        ids.iter().zip(&picked).map(|(ids, selected)| twin::Sequence { ids, types: &[], selected }).collect();
    twin::answers(graph, &OUTPUTS, &batch)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn every_prefix_of_the_passes_computes_the_same(encoder in encoders()) {
        let graph = draw(&encoder).unwrap();
        let drawn = answers(&graph, LayoutKind::Padded, &[]);
        prop_assert!(drawn.iter().all(|value| value.is_finite()));
        let (expected, allowed) = expected(&graph);
        let worst = distance(&expected, &drawn);
        prop_assert!(worst <= allowed, "the drawing differs from its twin by {worst}, allowed are {allowed}");
        for count in 1..=passes::ALL.len() {
            let worst = distance(&drawn, &answers(&graph, LayoutKind::Padded, &passes::ALL[..count]));
            prop_assert!(worst <= allowed, "{}: {worst}, allowed are {allowed}", passes::ALL[count - 1].name);
        }
        let (padded, packed) = (
            answers(&graph, LayoutKind::Padded, passes::ALL),
            answers(&graph, LayoutKind::Packed, passes::ALL),
        );
        prop_assert!(padded.iter().map(|v| v.to_bits()).eq(packed.iter().map(|v| v.to_bits())));
    }

    /// If no output has the rows of all tokens, the last layer computes only the rows that are pooled, with the same
    /// bits.
    #[test]
    fn rows_that_are_picked_early_have_the_bits_of_all(
        encoder in encoders(),
        pooling in prop::sample::select(vec![Pooling::Cls, Pooling::LastToken]),
        dtype in prop::sample::select(DType::ALL.to_vec()),
        padded in any::<bool>(),
    ) {
        let layout = if padded { LayoutKind::Padded } else { LayoutKind::Packed };
        let [all, picked] = [true, false].map(|shows_tokens| {
            let graph = draw(&Encoder { pooling, shows_tokens, selects: false, ..encoder.clone() }).unwrap();
            answers_named(&["pooled"], &graph, layout, passes::ALL, dtype)
        });
        prop_assert_eq!(all.len(), picked.len());
        prop_assert!(all.iter().map(|v| v.to_bits()).eq(picked.iter().map(|v| v.to_bits())), "{}", dtype);
    }

    #[test]
    fn plans_are_sound_and_nothing_gets_dearer(encoder in encoders()) {
        let (graph, extents) = (draw(&encoder).unwrap(), Extents { selected_rows: 7, ..Extents::of(&[30, 2]) });
        let mut bytes = vec![graph.total_cost(&extents).bytes];
        for layout in [LayoutKind::Padded, LayoutKind::Packed] {
            let program = Program::compile_traced(&graph, layout, passes::ALL, |step| {
                bytes.push(step.graph.total_cost(&extents).bytes);
            });
            let (records, plan) = unfolded_plan(&program.unwrap(), &extents);
            prop_assert_eq!(check(&records, &plan, 256), Ok(()));
        }
        let fused = &bytes[..=passes::ALL.len()];
        let part = passes::ALL.iter().position(|pass| pass.name == PART).unwrap();
        for fused in [&fused[..=part], &fused[part + 1..]] {
            prop_assert!(fused.is_sorted_by(|before, after| after <= before), "{:?}", fused);
        }
    }

    /// Paths that part have more to compute together, and none has more than before.
    #[test]
    fn no_output_gets_dearer_where_ways_part(encoder in encoders()) {
        let (graph, extents) = (draw(&encoder).unwrap(), Extents { selected_rows: 7, ..Extents::of(&[30, 2]) });
        let joint: Vec<_> = passes::ALL.iter().filter(|pass| pass.name != PART).copied().collect();
        for (_, output) in graph.outputs() {
            let flops = |passes: &[turbo_graph::Pass]| {
                let program = Program::compile(&graph, LayoutKind::Packed, passes).unwrap();
                let nodes = program.nodes_for(output);
                nodes.iter().map(|node| program.graph().cost(node, &extents).flops).sum::<u64>()
            };
            prop_assert!(flops(passes::ALL) <= flops(&joint), "{}", output);
        }
    }
}

/// The pass that gives one output a path of its own.
const PART: &str = "part picked rows";

/// The properties above would hold for passes that find nothing; so each must find its pattern in some encoder.
#[test]
fn every_pass_finds_its_pattern() {
    use proptest::{strategy::ValueTree, test_runner::TestRunner};
    let mut runner = TestRunner::deterministic();
    let mut found = vec![0; passes::ALL.len()];
    for _ in 0..100 {
        let encoder = encoders().new_tree(&mut runner).unwrap().current();
        let mut rewrites = Vec::new();
        Program::compile_traced(&draw(&encoder).unwrap(), LayoutKind::Packed, passes::ALL, |step| {
            rewrites.push(usize::from(step.rewrites > 0));
        })
        .unwrap();
        found.iter_mut().zip(rewrites).for_each(|(found, rewrites)| *found += rewrites);
    }
    for (pass, found) in passes::ALL.iter().zip(found) {
        assert!(found >= 3 || pass.name == "dead values", "{}: {found} of 100", pass.name);
    }
}
