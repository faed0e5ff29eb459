//! The `config.json` of each family, and the names and shapes of its tensors.

use serde_json::{Value, json};

use super::{
    Shape,
    file::{Dtype, Tensor, Values},
};

/// The sizes that most encoders are described by.
pub(super) struct Sizes {
    layers: usize,
    hidden: usize,
    heads: usize,
    wide: usize,
    vocab: usize,
    positions: usize,
    /// Width of the embedding tables, where the model projects them.
    narrow: usize,
}

/// Devlin et al., 2018; also ELECTRA's discriminator (Clark et al., 2020).
pub(super) const BERT_BASE: Sizes =
    Sizes { layers: 12, hidden: 768, heads: 12, wide: 3072, vocab: 30522, positions: 512, narrow: 768 };
pub(super) const BERT_LARGE: Sizes =
    Sizes { layers: 24, hidden: 1024, heads: 16, wide: 4096, narrow: 1024, ..BERT_BASE };
/// all-MiniLM-L6-v2 (Wang et al., 2020).
pub(super) const MINILM: Sizes = Sizes { layers: 6, hidden: 384, wide: 1536, narrow: 384, ..BERT_BASE };
/// Sanh et al., 2019.
pub(super) const DISTILBERT_BASE: Sizes = Sizes { layers: 6, ..BERT_BASE };
/// Liu et al., 2019; two rows of the position table belong to padding.
pub(super) const ROBERTA_BASE: Sizes = Sizes { vocab: 50265, positions: 514, ..BERT_BASE };
/// Lan et al., 2020.
pub(super) const ALBERT_BASE: Sizes = Sizes { vocab: 30000, narrow: 128, ..BERT_BASE };
pub(super) const ALBERT_XXLARGE: Sizes = Sizes { hidden: 4096, heads: 64, wide: 16384, ..ALBERT_BASE };
/// Song et al., 2020.
pub(super) const MPNET_BASE: Sizes = Sizes { vocab: 30527, positions: 514, ..BERT_BASE };
/// nomic-embed-text-v1.5 (Nussbaum et al., 2024).
pub(super) const NOMIC_BASE: Sizes = Sizes { vocab: 30528, positions: 8192, ..BERT_BASE };
/// nomic-embed-text-v2-moe (Nussbaum and Duderstadt, 2025).
pub(super) const NOMIC_EXPERTS: Sizes = Sizes { vocab: 250_048, positions: 2048, ..BERT_BASE };
/// gte-base-en-v1.5 (Zhang et al., 2024).
pub(super) const GTE_BASE: Sizes = Sizes { vocab: 30528, positions: 8192, ..BERT_BASE };

/// Tensors in the order in which they are written.
#[derive(Default)]
struct Tensors(Vec<Tensor>);

impl Tensors {
    fn push(&mut self, name: String, shape: &[usize], values: Values) {
        self.0.push(Tensor { name, shape: shape.to_vec(), values });
    }

    /// `[rows, columns]` under its own name plus `.weight`.
    fn matrix(&mut self, name: &str, rows: usize, columns: usize) {
        self.push(format!("{name}.weight"), &[rows, columns], Values::AroundZero);
    }

    fn bias(&mut self, name: &str, size: usize) {
        self.push(format!("{name}.bias"), &[size], Values::AroundZero);
    }

    fn gain(&mut self, name: &str, size: usize) {
        self.push(format!("{name}.weight"), &[size], Values::AroundOne);
    }

    fn linear(&mut self, name: &str, rows: usize, columns: usize) {
        self.matrix(name, rows, columns);
        self.bias(name, rows);
    }

    fn norm(&mut self, name: &str, size: usize) {
        self.gain(name, size);
        self.bias(name, size);
    }

    /// Word, position and, with `types` rows, token type tables, and their norm.
    fn embeddings(&mut self, sizes: &Sizes, types: usize) {
        self.matrix("embeddings.word_embeddings", sizes.vocab, sizes.narrow);
        self.matrix("embeddings.position_embeddings", sizes.positions, sizes.narrow);
        if types > 0 {
            self.matrix("embeddings.token_type_embeddings", types, sizes.narrow);
        }
        self.norm("embeddings.LayerNorm", sizes.narrow);
    }

    /// The layers of BERT.
    fn bert_layers(&mut self, sizes: &Sizes) {
        let &Sizes { hidden, wide, .. } = sizes;
        for layer in 0..sizes.layers {
            let name = format!("encoder.layer.{layer}");
            for part in ["query", "key", "value"] {
                self.linear(&format!("{name}.attention.self.{part}"), hidden, hidden);
            }
            self.linear(&format!("{name}.attention.output.dense"), hidden, hidden);
            self.norm(&format!("{name}.attention.output.LayerNorm"), hidden);
            self.linear(&format!("{name}.intermediate.dense"), wide, hidden);
            self.linear(&format!("{name}.output.dense"), hidden, wide);
            self.norm(&format!("{name}.output.LayerNorm"), hidden);
        }
    }
}

impl Sizes {
    fn shape(&self, own: Value, tensors: Tensors) -> Shape {
        let mut config = json!({
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.wide,
            "hidden_act": "gelu",
            "vocab_size": self.vocab,
            "max_position_embeddings": self.positions,
            "layer_norm_eps": 1e-12,
        });
        merge(&mut config, own);
        Shape { config, dtype: Dtype::F32, tensors: tensors.0 }
    }

    pub(super) fn bert(&self) -> Shape {
        let mut tensors = Tensors::default();
        tensors.embeddings(self, 2);
        tensors.bert_layers(self);
        tensors.linear("pooler.dense", self.hidden, self.hidden);
        let own = json!({ "model_type": "bert", "architectures": ["BertModel"], "type_vocab_size": 2 });
        self.shape(own, tensors)
    }

    pub(super) fn roberta(&self) -> Shape {
        let mut tensors = Tensors::default();
        tensors.embeddings(self, 1);
        tensors.bert_layers(self);
        tensors.linear("pooler.dense", self.hidden, self.hidden);
        let own = json!({
            "model_type": "roberta",
            "architectures": ["RobertaModel"],
            "type_vocab_size": 1,
            "layer_norm_eps": 1e-5,
            "pad_token_id": 1,
            "bos_token_id": 0,
            "eos_token_id": 2,
        });
        self.shape(own, tensors)
    }

    pub(super) fn electra(&self) -> Shape {
        let mut tensors = Tensors::default();
        tensors.embeddings(self, 2);
        tensors.bert_layers(self);
        let own = json!({
            "model_type": "electra",
            "architectures": ["ElectraModel"],
            "type_vocab_size": 2,
            "embedding_size": self.narrow,
        });
        self.shape(own, tensors)
    }

    pub(super) fn distilbert(&self) -> Shape {
        let &Sizes { hidden, wide, .. } = self;
        let mut tensors = Tensors::default();
        tensors.embeddings(self, 0);
        for layer in 0..self.layers {
            let name = format!("transformer.layer.{layer}");
            for part in ["q_lin", "k_lin", "v_lin", "out_lin"] {
                tensors.linear(&format!("{name}.attention.{part}"), hidden, hidden);
            }
            tensors.norm(&format!("{name}.sa_layer_norm"), hidden);
            tensors.linear(&format!("{name}.ffn.lin1"), wide, hidden);
            tensors.linear(&format!("{name}.ffn.lin2"), hidden, wide);
            tensors.norm(&format!("{name}.output_layer_norm"), hidden);
        }
        let config = json!({
            "model_type": "distilbert",
            "architectures": ["DistilBertModel"],
            "dim": hidden,
            "n_layers": self.layers,
            "n_heads": self.heads,
            "hidden_dim": wide,
            "activation": "gelu",
            "vocab_size": self.vocab,
            "max_position_embeddings": self.positions,
        });
        Shape { config, dtype: Dtype::F32, tensors: tensors.0 }
    }

    pub(super) fn albert(&self) -> Shape {
        let &Sizes { hidden, wide, .. } = self;
        let mut tensors = Tensors::default();
        tensors.embeddings(self, 2);
        tensors.linear("encoder.embedding_hidden_mapping_in", hidden, self.narrow);
        let name = "encoder.albert_layer_groups.0.albert_layers.0";
        tensors.norm(&format!("{name}.full_layer_layer_norm"), hidden);
        for part in ["query", "key", "value", "dense"] {
            tensors.linear(&format!("{name}.attention.{part}"), hidden, hidden);
        }
        tensors.norm(&format!("{name}.attention.LayerNorm"), hidden);
        tensors.linear(&format!("{name}.ffn"), wide, hidden);
        tensors.linear(&format!("{name}.ffn_output"), hidden, wide);
        tensors.linear("pooler", hidden, hidden);
        let own = json!({
            "model_type": "albert",
            "architectures": ["AlbertModel"],
            "type_vocab_size": 2,
            "embedding_size": self.narrow,
            "hidden_act": "gelu_new",
            "num_hidden_groups": 1,
            "inner_group_num": 1,
        });
        self.shape(own, tensors)
    }

    pub(super) fn mpnet(&self) -> Shape {
        let &Sizes { hidden, wide, .. } = self;
        let mut tensors = Tensors::default();
        tensors.embeddings(self, 0);
        for layer in 0..self.layers {
            let name = format!("encoder.layer.{layer}");
            for part in ["q", "k", "v", "o"] {
                tensors.linear(&format!("{name}.attention.attn.{part}"), hidden, hidden);
            }
            tensors.norm(&format!("{name}.attention.LayerNorm"), hidden);
            tensors.linear(&format!("{name}.intermediate.dense"), wide, hidden);
            tensors.linear(&format!("{name}.output.dense"), hidden, wide);
            tensors.norm(&format!("{name}.output.LayerNorm"), hidden);
        }
        tensors.matrix("encoder.relative_attention_bias", RELATIVE_BUCKETS, self.heads);
        tensors.linear("pooler.dense", hidden, hidden);
        let own = json!({
            "model_type": "mpnet",
            "architectures": ["MPNetModel"],
            "layer_norm_eps": 1e-5,
            "relative_attention_num_buckets": RELATIVE_BUCKETS,
            "pad_token_id": 1,
            "bos_token_id": 0,
            "eos_token_id": 2,
        });
        self.shape(own, tensors)
    }

    pub(super) fn nomic(&self) -> Shape {
        let &Sizes { hidden, wide, .. } = self;
        let mut tensors = Tensors::default();
        tensors.matrix("embeddings.word_embeddings", self.vocab, hidden);
        tensors.matrix("embeddings.token_type_embeddings", 2, hidden);
        tensors.norm("emb_ln", hidden);
        for layer in 0..self.layers {
            let name = format!("encoder.layers.{layer}");
            tensors.matrix(&format!("{name}.attn.Wqkv"), 3 * hidden, hidden);
            tensors.matrix(&format!("{name}.attn.out_proj"), hidden, hidden);
            tensors.matrix(&format!("{name}.mlp.fc11"), wide, hidden);
            tensors.matrix(&format!("{name}.mlp.fc12"), wide, hidden);
            tensors.matrix(&format!("{name}.mlp.fc2"), hidden, wide);
            tensors.norm(&format!("{name}.norm1"), hidden);
            tensors.norm(&format!("{name}.norm2"), hidden);
        }
        let own = json!({
            "activation_function": "swiglu",
            "type_vocab_size": 2,
            "layer_norm_epsilon": 1e-12,
            "rotary_emb_base": 1000,
            "qkv_proj_bias": false,
            "mlp_fc1_bias": false,
            "mlp_fc2_bias": false,
        });
        self.nomic_shape(own, tensors)
    }

    pub(super) fn nomic_with_experts(&self) -> Shape {
        const EXPERTS: usize = 8;
        let &Sizes { hidden, wide, .. } = self;
        let mut tensors = Tensors::default();
        tensors.matrix("embeddings.word_embeddings", self.vocab, hidden);
        tensors.matrix("embeddings.token_type_embeddings", 1, hidden);
        tensors.norm("emb_ln", hidden);
        for layer in 0..self.layers {
            let name = format!("encoder.layers.{layer}");
            tensors.linear(&format!("{name}.attn.Wqkv"), 3 * hidden, hidden);
            tensors.linear(&format!("{name}.attn.out_proj"), hidden, hidden);
            if layer % 2 == 1 {
                tensors.matrix(&format!("{name}.mlp.router.layer"), EXPERTS, hidden);
                for matrix in ["w1", "w2"] {
                    let name = format!("{name}.mlp.experts.mlp.{matrix}");
                    tensors.push(name, &[EXPERTS * wide, hidden], Values::AroundZero);
                }
                tensors.bias(&format!("{name}.mlp.experts"), hidden);
            } else {
                tensors.linear(&format!("{name}.mlp.fc1"), wide, hidden);
                tensors.linear(&format!("{name}.mlp.fc2"), hidden, wide);
            }
            tensors.norm(&format!("{name}.norm1"), hidden);
            tensors.norm(&format!("{name}.norm2"), hidden);
        }
        let own = json!({
            "max_trained_positions": self.positions,
            "activation_function": "gelu",
            "type_vocab_size": 1,
            "pad_token_id": 1,
            "layer_norm_epsilon": 1e-5,
            "moe_every_n_layers": 2,
            "moe_normalize_expert_weights": false,
            "moe_top_k": 2,
            "num_experts": EXPERTS,
            "num_shared_experts": 0,
            "expert_choice_router": false,
            "rotary_emb_base": 10000,
            "rotary_emb_scale_base": null,
            "qkv_proj_bias": true,
            "mlp_fc1_bias": true,
            "mlp_fc2_bias": true,
        });
        self.nomic_shape(own, tensors)
    }

    /// A shape of Nomic BERT: the fields that both versions share, and `own`, those of one version.
    fn nomic_shape(&self, own: Value, tensors: Tensors) -> Shape {
        let mut config = json!({
            "model_type": "nomic_bert",
            "architectures": ["NomicBertModel"],
            "n_embd": self.hidden,
            "n_layer": self.layers,
            "n_head": self.heads,
            "n_inner": self.wide,
            "n_positions": self.positions,
            "vocab_size": self.vocab,
            "rotary_emb_fraction": 1.0,
            "rotary_emb_interleaved": false,
            "rotary_scaling_factor": null,
            "prenorm": false,
            "parallel_block": false,
            "use_rms_norm": false,
            "causal": false,
        });
        merge(&mut config, own);
        Shape { config, dtype: Dtype::F32, tensors: tensors.0 }
    }

    pub(super) fn gte(&self) -> Shape {
        let &Sizes { hidden, wide, .. } = self;
        let mut tensors = Tensors::default();
        tensors.matrix("embeddings.word_embeddings", self.vocab, hidden);
        tensors.norm("embeddings.LayerNorm", hidden);
        for layer in 0..self.layers {
            let name = format!("encoder.layer.{layer}");
            tensors.linear(&format!("{name}.attention.qkv_proj"), 3 * hidden, hidden);
            tensors.linear(&format!("{name}.attention.o_proj"), hidden, hidden);
            tensors.matrix(&format!("{name}.mlp.up_gate_proj"), 2 * wide, hidden);
            tensors.linear(&format!("{name}.mlp.down_proj"), hidden, wide);
            tensors.norm(&format!("{name}.attn_ln"), hidden);
            tensors.norm(&format!("{name}.mlp_ln"), hidden);
        }
        let own = json!({
            "model_type": "new",
            "architectures": ["NewModel"],
            "type_vocab_size": 0,
            "position_embedding_type": "rope",
            "rope_theta": 500_000,
            "rope_scaling": { "factor": 2.0, "type": "ntk" },
            "layer_norm_type": "layer_norm",
            "pack_qkv": true,
            "unpad_inputs": false,
            "use_memory_efficient_attention": false,
            "logn_attention_scale": false,
        });
        self.shape(own, tensors)
    }
}

/// T5's two-sided buckets (Raffel et al., 2020).
const RELATIVE_BUCKETS: usize = 32;

/// Warner et al., 2024.
pub(super) fn modernbert_base() -> Shape {
    let (layers, hidden, wide, vocab) = (22, 768, 1152, 50368);
    let mut tensors = Tensors::default();
    tensors.matrix("embeddings.tok_embeddings", vocab, hidden);
    tensors.gain("embeddings.norm", hidden);
    for layer in 0..layers {
        let name = format!("layers.{layer}");
        if layer > 0 {
            tensors.gain(&format!("{name}.attn_norm"), hidden); // before the first layer it is the embeddings' own
        }
        tensors.matrix(&format!("{name}.attn.Wqkv"), 3 * hidden, hidden);
        tensors.matrix(&format!("{name}.attn.Wo"), hidden, hidden);
        tensors.gain(&format!("{name}.mlp_norm"), hidden);
        tensors.matrix(&format!("{name}.mlp.Wi"), 2 * wide, hidden);
        tensors.matrix(&format!("{name}.mlp.Wo"), hidden, wide);
    }
    tensors.gain("final_norm", hidden);
    let config = json!({
        "model_type": "modernbert",
        "architectures": ["ModernBertModel"],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 12,
        "intermediate_size": wide,
        "hidden_activation": "gelu",
        "vocab_size": vocab,
        "max_position_embeddings": 8192,
        "norm_eps": 1e-5,
        "norm_bias": false,
        "attention_bias": false,
        "mlp_bias": false,
        "global_attn_every_n_layers": 3,
        "local_attention": 128,
        "global_rope_theta": 160_000.0,
        "local_rope_theta": 10_000.0,
        "bos_token_id": 50281,
        "cls_token_id": 50281,
        "eos_token_id": 50282,
        "sep_token_id": 50282,
        "pad_token_id": 50283,
    });
    Shape { config, dtype: Dtype::F32, tensors: tensors.0 }
}

/// Qwen3-Embedding-0.6B (Zhang et al., 2025).
pub(super) fn qwen3_small() -> Shape {
    let (layers, hidden, wide, vocab) = (28, 1024, 3072, 151_669);
    let (heads, kv_heads, head_dim) = (16, 8, 128);
    let mut tensors = Tensors::default();
    tensors.matrix("embed_tokens", vocab, hidden);
    for layer in 0..layers {
        let name = format!("layers.{layer}");
        tensors.gain(&format!("{name}.input_layernorm"), hidden);
        for (part, heads) in [("q_proj", heads), ("k_proj", kv_heads), ("v_proj", kv_heads)] {
            tensors.matrix(&format!("{name}.self_attn.{part}"), heads * head_dim, hidden);
        }
        tensors.gain(&format!("{name}.self_attn.q_norm"), head_dim);
        tensors.gain(&format!("{name}.self_attn.k_norm"), head_dim);
        tensors.matrix(&format!("{name}.self_attn.o_proj"), hidden, heads * head_dim);
        tensors.gain(&format!("{name}.post_attention_layernorm"), hidden);
        for part in ["gate_proj", "up_proj"] {
            tensors.matrix(&format!("{name}.mlp.{part}"), wide, hidden);
        }
        tensors.matrix(&format!("{name}.mlp.down_proj"), hidden, wide);
    }
    tensors.gain("norm", hidden);
    let config = json!({
        "model_type": "qwen3",
        "architectures": ["Qwen3Model"],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": wide,
        "hidden_act": "silu",
        "vocab_size": vocab,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "rope_scaling": null,
        "attention_bias": false,
        "use_sliding_window": false,
        "sliding_window": null,
        "tie_word_embeddings": true,
        "bos_token_id": 151_643,
        "eos_token_id": 151_643,
        "torch_dtype": "bfloat16",
    });
    Shape { config, dtype: Dtype::Bf16, tensors: tensors.0 }
}

/// Puts the fields of `own` into `config`, and replaces those of the same name.
fn merge(config: &mut Value, own: Value) {
    if let (Value::Object(config), Value::Object(own)) = (config, own) {
        config.extend(own);
    }
}
