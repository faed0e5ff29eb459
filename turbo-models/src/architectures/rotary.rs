//! Rotary positions (Su et al., 2021): every pair of columns of a head rotates at its own speed.

use serde::Deserialize;
use serde_json::{Map, Value};
use turbo_graph::ValueId;

use crate::{ModelConfig, ModelError, config::Setting, drawing::Drawing, error::one_line};

/// Most positions of a table, since no tensor bounds their number. Published embedding models have up to 262144; some
/// generative models have a million.
const MOST_POSITIONS: usize = 1 << 18;

/// Most values of a table, for the same reason: the greatest published number of positions times that of columns.
const MOST_VALUES: usize = 1 << 26;

/// Most columns of a head that rotates: the speeds are listed before a tensor confirms the number. Published models
/// have up to 256.
const MOST_COLUMNS: usize = 4096;

/// The field that says how a model was stretched to longer inputs.
const SCALING: &str = "rope_scaling";

/// Which layers share their rotation speeds.
#[derive(Clone, Copy)]
pub(super) enum Layers {
    /// All layers.
    All,
    /// Those that see the whole input, in a model that also has others.
    Global,
    /// Those others.
    Local,
}

/// The field in which later versions of the reference describe rotary positions, stretched or not.
const PARAMETERS: &str = "rope_parameters";

/// Longest input of the first training, in positions; some files have it outside of these fields.
const TRAINED: &str = "original_max_position_embeddings";

/// The contents of either field.
#[derive(Clone, Default, Deserialize, PartialEq)]
pub(super) struct RopeParameters {
    rope_type: Option<String>,
    /// Name of `rope_type` in the first versions; many files have both.
    r#type: Option<String>,
    /// How many times longer inputs are than those of the first training.
    pub(super) factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    /// If given, GTE's columns are slowed down by different factors.
    pub(super) mixed_b: Option<f64>,
    rope_theta: Option<f64>,
}

impl RopeParameters {
    /// How the model was stretched; empty if the file does not say.
    pub(super) fn kind(&self) -> &str {
        self.rope_type.as_deref().or(self.r#type.as_deref()).unwrap_or_default()
    }

    /// Whether nothing was stretched, according to these fields.
    pub(super) fn is_default(&self) -> bool {
        matches!(self.kind(), "" | "default")
    }

    /// Whether both stretch in the same way, whatever their speeds.
    fn stretches_as(&self, other: &Self) -> bool {
        let stretch = |it: &Self| Self { rope_type: None, r#type: None, rope_theta: None, ..it.clone() };
        self.kind() == other.kind() && stretch(self) == stretch(other)
    }

    /// The base of the rotation speeds: that of these fields if they have one (files of later versions, stretched or
    /// not), else that of `setting`, or of [`SCALING`] if the file lacks the former.
    ///
    /// # Errors
    /// If the file also has a different base of the same name in [`SCALING`]: version 4 of the reference then uses
    /// `setting`, version 5 uses the other.
    pub(super) fn theta(&self, config: &ModelConfig, setting: Setting<f64>) -> Result<f64, ModelError> {
        let scaling = config.optional::<RopeParameters>(SCALING)?;
        let in_scaling = scaling.and_then(|it| it.rope_theta).filter(|_| setting.name() == "rope_theta");
        let (field, theta) = match (self.rope_theta, in_scaling) {
            (Some(theta), _) => (PARAMETERS, theta),
            (None, Some(theta)) if !config.is_given(setting.name()) => (SCALING, theta),
            (None, _) => (setting.name(), config.read(setting)?),
        };
        if let Some(other) = in_scaling.filter(|other| *other != theta) {
            let why = format!("its rope_theta is {other}, expected {theta} as in {field}");
            return Err(config.wrong(SCALING, why));
        }
        match theta.is_finite() && theta > 0.0 {
            true => Ok(theta),
            false => Err(config.wrong(field, format!("is {theta}, expected more than 0"))),
        }
    }
}

/// How much slower the columns rotate in a model that was stretched to longer inputs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Stretch {
    /// They rotate as in the first training.
    None,
    /// All are slowed down by the same factor (Chen et al., 2023, "Extending Context Window of Large Language Models
    /// via Positional Interpolation").
    Linear {
        /// How many times slower.
        factor: f64,
    },
    /// As in Llama 3.1: columns that rotate often within an input of the first training are unchanged, those that
    /// rotate seldom are slowed down, and those in between are slowed down in part (Grattafiori et al., 2024, "The
    /// Llama 3 Herd of Models").
    ByFrequency {
        /// How many times slower.
        factor: f64,
        /// Columns that rotate less often than this in such an input are slowed down,
        low: f64,
        /// and columns that rotate more often than this are unchanged.
        high: f64,
        /// Positions of such an input.
        trained: f64,
    },
}

impl Stretch {
    /// Speed of a pair of columns, in radians per position, whose original speed is `frequency`.
    fn of(self, frequency: f64) -> f64 {
        match self {
            Self::None => frequency,
            Self::Linear { factor } => frequency / factor,
            Self::ByFrequency { factor, low, high, trained } => {
                let turns = trained * frequency / std::f64::consts::TAU;
                let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                frequency * (kept + (1.0 - kept) / factor)
            }
        }
    }
}

impl RopeParameters {
    /// How these contents of `field` stretch a decoder.
    fn stretch(&self, config: &ModelConfig, field: &'static str) -> Result<Stretch, ModelError> {
        let kind = self.kind();
        let positive = |name: &str, value: Option<f64>| match value {
            Some(value) if value.is_finite() && value > 0.0 => Ok(value),
            Some(value) => Err(config.wrong(field, format!("its {name} is {value}, expected more than 0"))),
            None => Err(config.wrong(field, format!("is {kind:?} without {name}"))),
        };
        let factor = || positive("factor", self.factor);
        match kind {
            "" | "default" => Ok(Stretch::None),
            "linear" => Ok(Stretch::Linear { factor: factor()? }),
            "llama3" => {
                let low = positive("low_freq_factor", self.low_freq_factor)?;
                let high = positive("high_freq_factor", self.high_freq_factor)?;
                let trained = positive(TRAINED, self.original_max_position_embeddings)?;
                // version 5 of the reference uses this value, version 4 does not
                let beside = config.optional::<f64>(TRAINED)?;
                if let Some(other) = beside.filter(|other| *other != trained) {
                    return Err(
                        config.wrong(TRAINED, format!("is {other}, expected {trained} as in {field}"))
                    );
                }
                if high <= low {
                    let why =
                        format!("its high_freq_factor is {high}, expected more than low_freq_factor {low}");
                    return Err(config.wrong(field, why));
                }
                Ok(Stretch::ByFrequency { factor: factor()?, low, high, trained })
            }
            _ => Err(config.unsupported(field, kind, "default, linear, llama3")),
        }
    }
}

/// How positions rotate in a model whose layers are all alike.
pub(super) struct Turning {
    /// Base of the rotation speeds.
    pub(super) theta: f64,
    /// How the model was stretched, and the field that says so; `None` if no field does.
    pub(super) stretched: Option<(&'static str, RopeParameters)>,
}

impl Turning {
    /// Reads both fields. If [`SCALING`] says anything, version 5 of the reference takes everything from there, and
    /// what is missing there from `setting`; version 4 does not know [`PARAMETERS`].
    ///
    /// # Errors
    /// If [`PARAMETERS`] contradicts it; as [`RopeParameters::theta`].
    pub(super) fn read(config: &ModelConfig, setting: Setting<f64>) -> Result<Self, ModelError> {
        let later = config.optional::<RopeParameters>(PARAMETERS)?.unwrap_or_default();
        let theta = later.theta(config, setting)?;
        let is_said = config.optional::<Map<String, Value>>(SCALING)?.is_some_and(|it| !it.is_empty());
        let earlier = config.optional::<RopeParameters>(SCALING)?.filter(|_| is_said);
        let Some(earlier) = earlier else {
            let stretched = Some((PARAMETERS, later)).filter(|(_, later)| !later.is_default());
            return Ok(Self { theta, stretched });
        };
        if !later.is_default() && !earlier.stretches_as(&later) {
            return Err(config.wrong(SCALING, format!("does not stretch positions as {PARAMETERS} does")));
        }
        let beside = earlier.rope_theta.map_or_else(|| config.read(setting), Ok)?;
        if let Some(other) = later.rope_theta.filter(|other| *other != beside) {
            let why = format!(
                "its rope_theta is {other}, expected {beside} as beside {SCALING}, which counts before it"
            );
            return Err(config.wrong(PARAMETERS, why));
        }
        Ok(Self { theta, stretched: Some((SCALING, earlier)) })
    }
}

/// The table of a decoder whose layers all rotate alike, stretched or not.
pub(super) fn stretched_table(
    drawing: &mut Drawing<'_>,
    config: &ModelConfig,
    setting: Setting<f64>,
) -> Result<ValueId, ModelError> {
    let Turning { theta, stretched } = Turning::read(config, setting)?;
    let stretch = stretched.map_or(Ok(Stretch::None), |(field, it)| it.stretch(config, field))?;
    table(drawing, config, theta, stretch)
}

/// How positions rotate in each kind of layer.
#[derive(Default, Deserialize)]
struct RopeParametersByLayer {
    full_attention: Option<RopeParameters>,
    sliding_attention: Option<RopeParameters>,
    /// Fields that belong to neither kind.
    #[serde(flatten)]
    others: Map<String, Value>,
}

impl RopeParametersByLayer {
    /// # Errors
    /// If the file has other fields in [`PARAMETERS`], as models with one kind of layer do: they would be ignored.
    fn read(config: &ModelConfig) -> Result<Self, ModelError> {
        let by_layer = config.optional::<Self>(PARAMETERS)?.unwrap_or_default();
        match by_layer.others.keys().min() {
            None => Ok(by_layer),
            Some(other) => {
                let why = format!(
                    "has {other} outside of both kinds of layers, expected it in full_attention and sliding_attention"
                );
                Err(config.wrong(PARAMETERS, one_line(why)))
            }
        }
    }
}

/// The base of the rotation speeds of layers that were not stretched.
pub(super) fn theta(config: &ModelConfig, layers: Layers, setting: Setting<f64>) -> Result<f64, ModelError> {
    let parameters = match layers {
        Layers::All => config.optional::<RopeParameters>(PARAMETERS)?,
        Layers::Global => RopeParametersByLayer::read(config)?.full_attention,
        Layers::Local => RopeParametersByLayer::read(config)?.sliding_attention,
    };
    let parameters = parameters.unwrap_or_default();
    match parameters.is_default() {
        true => parameters.theta(config, setting),
        false => Err(config.unsupported(PARAMETERS, parameters.kind(), "default")),
    }
}

/// Refuses stretched models, and [`SCALING`] for one kind of layer: the reference knows it only for all layers.
pub(super) fn refuse_scaling(config: &ModelConfig) -> Result<(), ModelError> {
    let fields = config.optional::<Map<String, Value>>(SCALING)?.unwrap_or_default();
    if let Some((kind, _)) = fields.iter().find(|(_, value)| value.is_object()) {
        let why = format!("has {kind}, expected rope_type \"default\" for layers of all kinds");
        return Err(config.wrong(SCALING, one_line(why)));
    }
    match config.optional::<RopeParameters>(SCALING)? {
        Some(scaling) if !scaling.is_default() => Err(config.unsupported(SCALING, scaling.kind(), "default")),
        _ => Ok(()),
    }
}

/// Refuses a base in [`SCALING`] that is not that of both kinds of layers: version 5 of the reference uses it for both,
/// version 4 for neither.
pub(super) fn refuse_theta_in_scaling(config: &ModelConfig, theta: [f64; 2]) -> Result<(), ModelError> {
    let scaling = config.optional::<RopeParameters>(SCALING)?;
    match scaling.and_then(|it| it.rope_theta).filter(|other| theta != [*other; 2]) {
        None => Ok(()),
        Some(other) => {
            let [global, local] = theta;
            let kinds = format!("which counts before those of both kinds of layers, {global} and {local}");
            Err(config.wrong(SCALING, format!("its rope_theta is {other}, {kinds}")))
        }
    }
}

/// The table for heads whose column pair `i` rotates by `theta^(−2i / head_dim)` radians per position, slowed down as
/// `stretch` says.
pub(super) fn table(
    drawing: &mut Drawing<'_>,
    config: &ModelConfig,
    theta: f64,
    stretch: Stretch,
) -> Result<ValueId, ModelError> {
    let (head_dim, positions) = (config.head_dim(), config.max_position_embeddings);
    let width = if config.is_given("head_dim") { "head_dim" } else { "hidden_size" };
    if !head_dim.is_multiple_of(2) {
        let why = format!("makes heads of {head_dim} columns, expected an even number");
        return Err(config.wrong(width, why));
    }
    if head_dim > MOST_COLUMNS {
        let why = format!("makes heads of {head_dim} columns, expected at most {MOST_COLUMNS}");
        return Err(config.wrong(width, why));
    }
    if positions > MOST_POSITIONS {
        let why = format!("is {positions}, expected at most {MOST_POSITIONS}");
        return Err(config.wrong("max_position_embeddings", why));
    }
    if positions * head_dim > MOST_VALUES {
        let most = MOST_VALUES / head_dim;
        let why = format!("is {positions}, expected at most {most} for heads of {head_dim} columns");
        return Err(config.wrong("max_position_embeddings", why));
    }
    let frequency = |pair: usize| stretch.of(theta.powf(-2.0 * pair as f64 / head_dim as f64));
    let frequencies: Vec<f64> = (0..head_dim / 2).map(frequency).collect();
    Ok(drawing.graph.rotary_table(&frequencies, positions))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Published for Llama 3.1: a factor of 8 over 8192 positions, slowed down below one turn, unchanged above four.
    #[test]
    fn columns_that_turn_often_are_not_slowed_down() {
        let stretch = Stretch::ByFrequency { factor: 8.0, low: 1.0, high: 4.0, trained: 8192.0 };
        let per_turns = |turns: f64| turns * std::f64::consts::TAU / 8192.0;
        for (turns, slower) in [(1000.0, 1.0), (4.0, 1.0), (1.0, 8.0), (0.01, 8.0), (2.5, 1.0 / 0.5625)] {
            let (before, after) = (per_turns(turns), stretch.of(per_turns(turns)));
            assert!(
                (before / after - slower).abs() < 1e-12,
                "{turns} turns: {} times slower",
                before / after
            );
        }
        assert_eq!((Stretch::None.of(0.5), Stretch::Linear { factor: 4.0 }.of(0.5)), (0.5, 0.125));
    }
}
