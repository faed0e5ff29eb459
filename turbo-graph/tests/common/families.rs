//! Small graphs in the shape of today's encoders, drawn as their papers and reference implementations draw them.

use turbo_graph::{
    Activation, AttentionMask, Graph, GraphBuilder, GraphError, HeadColumns, Input, Pooling, PositionBuckets,
    Positions, Rhs, Routing, ValueId,
};

pub(crate) const VOCABULARY: usize = 50;
const HIDDEN: usize = 32;
const HEADS: usize = 4;
const HEAD_DIM: usize = 8;
const INNER: usize = 40;
const POSITIONS: usize = 64;
pub(crate) const EXPERTS: usize = 3;

type Drawn = Result<ValueId, GraphError>;

/// Draws a family onto an empty sheet.
type Draw = fn(&mut GraphBuilder) -> Result<(), GraphError>;

/// All of them, by name.
pub(crate) fn all() -> Vec<(&'static str, Graph)> {
    let drawn: [(&str, Draw); 10] = [
        ("ModernBERT", modern_bert),
        ("Qwen3", qwen3),
        ("MPNet", mpnet),
        ("DeBERTa", deberta),
        ("Nomic", nomic),
        ("experts", experts),
        ("SPLADE", splade),
        ("masked words", masked_words),
        ("classifier", classifier),
        ("BERT", bert),
    ];
    drawn.into_iter().map(|(name, draw)| (name, graph(name, draw))).collect()
}

pub(crate) fn family(name: &str) -> Graph {
    all().into_iter().find(|(family, _)| *family == name).expect("it is one of these").1
}

fn graph(name: &str, draw: Draw) -> Graph {
    let mut g = GraphBuilder::new(name);
    draw(&mut g).expect("the drawing is right");
    g.finish().expect("the drawing is whole")
}

fn outputs(g: &mut GraphBuilder, x: ValueId, pooling: Pooling) -> Result<(), GraphError> {
    let pooled = g.pool(x, pooling)?;
    g.output("tokens", x);
    g.output("pooled", pooled);
    Ok(())
}

fn words(g: &mut GraphBuilder) -> Drawn {
    lookup(g, "words", VOCABULARY, Input::InputIds)
}

fn lookup(g: &mut GraphBuilder, name: &str, rows: usize, ids: Input) -> Drawn {
    let (table, ids) = (g.weight(name, &[rows, HIDDEN]), g.input(ids));
    g.embed(table, ids)
}

fn product(g: &mut GraphBuilder, name: &str, x: ValueId, (k, n): (usize, usize)) -> Drawn {
    let weight = g.weight(&format!("{name}.weight"), &[n, k]);
    g.matmul(x, weight)
}

fn linear(g: &mut GraphBuilder, name: &str, x: ValueId, sizes: (usize, usize)) -> Drawn {
    let bias = g.weight(&format!("{name}.bias"), &[sizes.1]);
    let x = product(g, name, x, sizes)?;
    g.add_bias(x, bias)
}

fn norm(g: &mut GraphBuilder, name: &str, x: ValueId) -> Drawn {
    let (gain, offset) =
        (g.weight(&format!("{name}.gain"), &[HIDDEN]), g.weight(&format!("{name}.offset"), &[HIDDEN]));
    g.layer_norm(x, gain, Some(offset), 1e-5)
}

fn norm_without_offset(g: &mut GraphBuilder, name: &str, x: ValueId) -> Drawn {
    let gain = g.weight(&format!("{name}.gain"), &[HIDDEN]);
    g.layer_norm(x, gain, None, 1e-5)
}

fn rms(g: &mut GraphBuilder, name: &str, x: ValueId) -> Drawn {
    let gain = g.weight(&format!("{name}.gain"), &[HIDDEN]);
    g.rms_norm(x, gain, 1e-6)
}

fn rotary_table(g: &mut GraphBuilder, base: f64) -> ValueId {
    let frequency = |pair: usize| base.powf(-2.0 * pair as f64 / HEAD_DIM as f64);
    g.rotary_table(&(0..HEAD_DIM / 2).map(frequency).collect::<Vec<_>>(), POSITIONS)
}

fn heads(first: usize, num_heads: usize) -> HeadColumns {
    HeadColumns { first, num_heads, head_dim: HEAD_DIM }
}

/// What is added to scores by distance.
enum Bias<'a> {
    None,
    /// A table of 8 buckets.
    Table(&'a str),
    /// The scores of queries and keys with [`BUCKETS`].
    Scores([ValueId; 2]),
}

/// Fewer positions than the distances of most batches here.
const BUCKETS: PositionBuckets = PositionBuckets { span: 8, max_distance: Some(30) };

/// `softmax(mask(scale · q·kᵀ + bias)) · v`, heads side by side.
fn attention(g: &mut GraphBuilder, [q, k, v]: [ValueId; 3], mask: AttentionMask, bias: Bias<'_>) -> Drawn {
    let scores = g.batched_matmul(q, k, Rhs::Transposed)?;
    let mut scores = g.scale(scores, (HEAD_DIM as f32).sqrt().recip())?;
    scores = match bias {
        Bias::None => scores,
        Bias::Table(name) => {
            let table = g.weight(name, &[8, HEADS]);
            g.add_relative_bias(scores, table, 8, 20)?
        }
        Bias::Scores(of_both) => g.add_disentangled(scores, of_both, BUCKETS)?,
    };
    let scores = g.mask(scores, mask)?;
    let probabilities = g.softmax(scores)?;
    let context = g.batched_matmul(probabilities, v, Rhs::Normal)?;
    g.merge_heads(context)
}

/// Pre-norm without biases; one published matrix for queries, keys and values and one for both halves of the gate; two
/// rotary tables; every third layer sees everything, the others a window; no norm before the first attention.
fn modern_bert(g: &mut GraphBuilder) -> Result<(), GraphError> {
    let x = words(g)?;
    let mut x = norm_without_offset(g, "embeddings.norm", x)?;
    let (global, local) = (rotary_table(g, 160_000.0), rotary_table(g, 10_000.0));
    for layer in 0..7 {
        g.layer(Some(layer));
        let name = format!("layers.{layer}");
        let is_global = layer % 3 == 0;
        let normed = if layer == 0 { x } else { norm_without_offset(g, &format!("{name}.attn_norm"), x)? };
        let qkv = product(g, &format!("{name}.Wqkv"), normed, (HIDDEN, 3 * HIDDEN))?;
        let table = if is_global { global } else { local };
        let (q, k) = (g.rotary(qkv, heads(0, HEADS), table)?, g.rotary(qkv, heads(HIDDEN, HEADS), table)?);
        let qkv = [
            g.split_heads(q, HEADS)?,
            g.split_heads(k, HEADS)?,
            g.split_heads_at(qkv, heads(2 * HIDDEN, HEADS))?,
        ];
        let mask = if is_global { AttentionMask::Full } else { AttentionMask::Window { reach: 3 } };
        let context = attention(g, qkv, mask, Bias::None)?;
        let attended = product(g, &format!("{name}.Wo"), context, (HIDDEN, HIDDEN))?;
        let x_attended = g.add(x, attended)?;
        let normed = norm_without_offset(g, &format!("{name}.mlp_norm"), x_attended)?;
        let wide = product(g, &format!("{name}.Wi"), normed, (HIDDEN, 2 * INNER))?;
        let gated = g.gate(wide, Activation::GeluErf)?;
        let narrow = product(g, &format!("{name}.mlp.Wo"), gated, (INNER, HIDDEN))?;
        x = g.add(x_attended, narrow)?;
    }
    g.layer(None);
    let x = norm_without_offset(g, "final_norm", x)?;
    outputs(g, x, Pooling::Mean)
}

/// Pre-norm by the mean square, fewer keys than queries, heads normed and then turned, causal, two matrices for a gate.
fn qwen3(g: &mut GraphBuilder) -> Result<(), GraphError> {
    let mut x = words(g)?;
    let table = rotary_table(g, 1_000_000.0);
    for layer in 0..3 {
        g.layer(Some(layer));
        let name = |part: &str| format!("layers.{layer}.{part}");
        let normed = rms(g, &name("input_layernorm"), x)?;
        let mut turned = |part: &str, num_heads: usize| {
            let rows = product(g, &name(&format!("{part}_proj")), normed, (HIDDEN, num_heads * HEAD_DIM))?;
            let gain = g.weight(&name(&format!("{part}_norm.gain")), &[HEAD_DIM]);
            let rows = g.head_rms_norm(rows, heads(0, num_heads), gain, 1e-6)?;
            let rows = g.rotary(rows, heads(0, num_heads), table)?;
            g.split_heads(rows, num_heads)
        };
        let (q, k) = (turned("q", HEADS)?, turned("k", HEADS / 2)?);
        let v = product(g, &name("v_proj"), normed, (HIDDEN, HIDDEN / 2))?;
        let v = g.split_heads(v, HEADS / 2)?;
        let context = attention(g, [q, k, v], AttentionMask::Causal, Bias::None)?;
        let attended = product(g, &name("o_proj"), context, (HIDDEN, HIDDEN))?;
        let attended = g.add(x, attended)?;
        let normed = rms(g, &name("post_attention_layernorm"), attended)?;
        let gate = product(g, &name("gate_proj"), normed, (HIDDEN, INNER))?;
        let up = product(g, &name("up_proj"), normed, (HIDDEN, INNER))?;
        let gate = g.activate(gate, Activation::Silu)?;
        let gated = g.mul(gate, up)?;
        let narrow = product(g, &name("down_proj"), gated, (INNER, HIDDEN))?;
        x = g.add(attended, narrow)?;
    }
    g.layer(None);
    let x = rms(g, "norm", x)?;
    outputs(g, x, Pooling::LastToken)
}

/// BERT without token types, with a bias on the scores that all layers share.
fn mpnet(g: &mut GraphBuilder) -> Result<(), GraphError> {
    let x = words(g)?;
    let positions =
        lookup(g, "positions", POSITIONS + 2, Input::PositionIds(Positions::AfterPad { pad_id: 1 }))?;
    let x = g.add(x, positions)?;
    let mut x = norm(g, "embeddings.norm", x)?;
    for layer in 0..3 {
        g.layer(Some(layer));
        x = post_norm_layer(g, &format!("layer.{layer}"), x, Bias::Table("relative_attention_bias"))?;
    }
    g.layer(None);
    outputs(g, x, Pooling::MeanSqrtLen)
}

fn post_norm_layer(g: &mut GraphBuilder, name: &str, x: ValueId, bias: Bias<'_>) -> Drawn {
    let x = attended(g, name, x, bias)?;
    feed_forward(g, name, x)
}

fn attended(g: &mut GraphBuilder, name: &str, x: ValueId, bias: Bias<'_>) -> Drawn {
    let [q, k, v] = ["q", "k", "v"].map(|part| {
        let rows = linear(g, &format!("{name}.{part}"), x, (HIDDEN, HIDDEN))?;
        g.split_heads(rows, HEADS)
    });
    let context = attention(g, [q?, k?, v?], AttentionMask::Full, bias)?;
    behind_attention(g, name, x, context)
}

/// BERT without positions, whose queries and keys score with those of each other.
fn deberta(g: &mut GraphBuilder) -> Result<(), GraphError> {
    let x = words(g)?;
    let mut x = norm(g, "embeddings.norm", x)?;
    for layer in 0..3 {
        g.layer(Some(layer));
        let name = format!("layer.{layer}");
        let mut rows = |part: &str| linear(g, &format!("{name}.{part}"), x, (HIDDEN, HIDDEN));
        let (q, k, v) = (rows("q")?, rows("k")?, rows("v")?);
        let mut scores = |rows, part: &str| {
            let table = g.weight(&format!("{name}.{part}"), &[BUCKETS.count(), HIDDEN]);
            g.position_scores(rows, heads(0, HEADS), table, BUCKETS)
        };
        let scores = [scores(q, "positions_of_keys")?, scores(k, "positions_of_queries")?];
        let qkv = [g.split_heads(q, HEADS)?, g.split_heads(k, HEADS)?, g.split_heads(v, HEADS)?];
        let context = attention(g, qkv, AttentionMask::Full, Bias::Scores(scores))?;
        x = behind_attention(g, &name, x, context)?;
        x = feed_forward(g, &name, x)?;
    }
    g.layer(None);
    outputs(g, x, Pooling::Cls)
}

/// The second half of a layer.
fn feed_forward(g: &mut GraphBuilder, name: &str, x: ValueId) -> Drawn {
    let wide = linear(g, &format!("{name}.wide"), x, (HIDDEN, INNER))?;
    let wide = g.activate(wide, Activation::GeluErf)?;
    let narrow = linear(g, &format!("{name}.narrow"), wide, (INNER, HIDDEN))?;
    let sum = g.add(narrow, x)?;
    norm(g, &format!("{name}.norm"), sum)
}

/// The rest of the first half.
fn behind_attention(g: &mut GraphBuilder, name: &str, x: ValueId, context: ValueId) -> Drawn {
    let attended = linear(g, &format!("{name}.o"), context, (HIDDEN, HIDDEN))?;
    let sum = g.add(attended, x)?;
    norm(g, &format!("{name}.attention_norm"), sum)
}

/// BERT in which every other layer has experts, of which a row has two.
fn experts(g: &mut GraphBuilder) -> Result<(), GraphError> {
    let mut x = words(g)?;
    for layer in 0..6 {
        g.layer(Some(layer));
        let name = format!("layer.{layer}");
        if layer % 2 == 0 {
            x = post_norm_layer(g, &name, x, Bias::None)?;
            continue;
        }
        x = attended(g, &name, x, Bias::None)?;
        let logits = product(g, &format!("{name}.router"), x, (HIDDEN, EXPERTS))?;
        let wide = product(g, &format!("{name}.wide"), x, (HIDDEN, EXPERTS * INNER))?;
        let wide = g.activate(wide, Activation::GeluErf)?;
        let wide = g.weigh_experts(wide, logits, Routing { num_experts: EXPERTS, top_k: 2 })?;
        let narrow = linear(g, &format!("{name}.narrow"), wide, (EXPERTS * INNER, HIDDEN))?;
        let sum = g.add(narrow, x)?;
        x = norm(g, &format!("{name}.norm"), sum)?;
    }
    g.layer(None);
    outputs(g, x, Pooling::Mean)
}

/// Post-norm without biases, three matrices turned, two matrices for a gate of which the second is activated.
fn nomic(g: &mut GraphBuilder) -> Result<(), GraphError> {
    let x = words(g)?;
    let types = lookup(g, "types", 2, Input::TokenTypeIds)?;
    let x = g.add(x, types)?;
    let mut x = norm(g, "emb_ln", x)?;
    let table = rotary_table(g, 1000.0);
    for layer in 0..3 {
        g.layer(Some(layer));
        let name = |part: &str| format!("layers.{layer}.{part}");
        let mut turned = |part: &str| {
            let rows = product(g, &name(part), x, (HIDDEN, HIDDEN))?;
            let rows = g.rotary(rows, heads(0, HEADS), table)?;
            g.split_heads(rows, HEADS)
        };
        let (q, k) = (turned("q")?, turned("k")?);
        let v = product(g, &name("v"), x, (HIDDEN, HIDDEN))?;
        let v = g.split_heads(v, HEADS)?;
        let context = attention(g, [q, k, v], AttentionMask::Full, Bias::None)?;
        let attended = product(g, &name("out_proj"), context, (HIDDEN, HIDDEN))?;
        let sum = g.add(attended, x)?;
        let attended = norm(g, &name("norm1"), sum)?;
        let up = product(g, &name("fc11"), attended, (HIDDEN, INNER))?;
        let gate = product(g, &name("fc12"), attended, (HIDDEN, INNER))?;
        let gate = g.activate(gate, Activation::Silu)?;
        let gated = g.mul(up, gate)?;
        let narrow = product(g, &name("fc2"), gated, (INNER, HIDDEN))?;
        let sum = g.add(narrow, attended)?;
        x = norm(g, &name("norm2"), sum)?;
    }
    g.layer(None);
    outputs(g, x, Pooling::Cls)
}

/// Vocabulary logits of rows, with the words' table as the matrix.
fn vocabulary_head(g: &mut GraphBuilder, x: ValueId) -> Drawn {
    let x = linear(g, "transform", x, (HIDDEN, HIDDEN))?;
    let x = g.activate(x, Activation::GeluErf)?;
    let x = norm(g, "transform.norm", x)?;
    let (words, bias) = (g.weight("words", &[VOCABULARY, HIDDEN]), g.weight("decoder.bias", &[VOCABULARY]));
    let logits = g.matmul(x, words)?;
    g.add_bias(logits, bias)
}

fn short_bert(g: &mut GraphBuilder) -> Drawn {
    let x = words(g)?;
    let positions = lookup(g, "positions", POSITIONS, Input::PositionIds(Positions::FromZero))?;
    let sum = g.add(x, positions)?;
    let mut x = norm(g, "embeddings.norm", sum)?;
    for layer in 0..3 {
        g.layer(Some(layer));
        x = post_norm_layer(g, &format!("layer.{layer}"), x, Bias::None)?;
    }
    g.layer(None);
    Ok(x)
}

/// The hidden state of every token, and of the first.
fn bert(g: &mut GraphBuilder) -> Result<(), GraphError> {
    let x = short_bert(g)?;
    outputs(g, x, Pooling::Cls)
}

/// The maximum of each word's logit over the sequence, `ln(1 + relu)` of it.
fn splade(g: &mut GraphBuilder) -> Result<(), GraphError> {
    let x = short_bert(g)?;
    let logits = vocabulary_head(g, x)?;
    let weights = g.activate(logits, Activation::Log1pRelu)?;
    let pooled = g.pool(weights, Pooling::Max)?;
    g.output("pooled", pooled);
    Ok(())
}

/// Logits of the selected tokens alone.
fn masked_words(g: &mut GraphBuilder) -> Result<(), GraphError> {
    let x = short_bert(g)?;
    let rows = g.select(x)?;
    let logits = vocabulary_head(g, rows)?;
    g.output("selected", logits);
    Ok(())
}

/// Logits of three classes from the first token.
fn classifier(g: &mut GraphBuilder) -> Result<(), GraphError> {
    let x = short_bert(g)?;
    let first = g.pool(x, Pooling::Cls)?;
    let pooled = linear(g, "pooler", first, (HIDDEN, HIDDEN))?;
    let pooled = g.activate(pooled, Activation::Tanh)?;
    let classes = linear(g, "classifier", pooled, (HIDDEN, 3))?;
    g.output("pooled", classes);
    Ok(())
}
