//! Runs the steps of an ensemble for one request.

use std::collections::HashMap;

use futures_util::future::{try_join, try_join_all};

use super::{
    labels::LabelVectors,
    plan::{Does, Plan, Planned, Read},
};
use crate::{
    engine::{EngineError, InferRequest, Input, OutputKind, Row, Truncation, Usage},
    models::Served,
    tasks::{IfFull, infer_in_parts},
};

/// A request, and the engines that answer its parts.
pub(super) struct Run<'a> {
    pub(super) plan: &'a Plan,
    /// A lease on each model, by the name that the steps use for it.
    pub(super) members: &'a HashMap<String, Served>,
    /// For each step of the plan, the vectors of its labels; empty for steps without labels of their own.
    pub(super) labels: &'a [LabelVectors],
    /// Empty where the request has none.
    pub(super) query: &'a str,
    pub(super) texts: &'a [String],
    /// For each text, the number of its input in the request.
    pub(super) numbers: &'a [usize],
    pub(super) truncation: Option<Truncation>,
    /// What happens if a model has no room when it is first asked.
    pub(super) if_full: IfFull,
    /// Whether the caller then retries the whole request.
    pub(super) retries: bool,
}

/// The result of a step: some of the request's texts, by their places, with a row for each (retrieved texts have none).
#[derive(Clone, Debug, Default)]
pub(super) struct Value {
    pub(super) of: Vec<usize>,
    pub(super) rows: Vec<Row>,
}

/// The result of a step, and what it took.
type Done = (Value, Usage);

impl Run<'_> {
    /// The result of the last step, and what all steps took.
    pub(super) async fn run(&self) -> Result<Done, EngineError> {
        let (mut values, mut usage): (Vec<Value>, _) = (Vec::new(), Usage::default());
        while let Some(next) = self.plan.steps.get(values.len()) {
            let rest = &self.plan.steps[values.len()..];
            let wave = rest.iter().take_while(|planned| planned.wave == next.wave).enumerate();
            let done = wave.map(|(nth, planned)| self.step(values.len() + nth, planned, &values));
            for (value, took) in try_join_all(done).await? {
                usage.add_work(&took);
                values.push(value);
            }
        }
        Ok((values.pop().unwrap_or_default(), usage))
    }

    async fn step(&self, place: usize, planned: &Planned, values: &[Value]) -> Result<Done, EngineError> {
        let if_full = if self.is_first(place) { self.if_full } else { IfFull::Waits };
        match &planned.step.does {
            Does::Embed { model, prompt, .. } => {
                let of = self.read(planned, 0, values);
                let (rows, usage) =
                    self.ask(model, self.inputs(&of), &of, (UNIT, prompt.clone()), if_full).await?;
                Ok((Value { of, rows }, usage))
            }
            Does::Retrieve { model, keep, query_prompt, texts_prompt, .. } => {
                let of = self.read(planned, 1, values);
                self.retrieve(model, of, *keep, [query_prompt.clone(), texts_prompt.clone()], if_full).await
            }
            Does::Rerank { model, .. } => {
                let of = self.read(planned, 1, values);
                let pair = |&place: &usize| Input::Pair(self.query.to_owned(), self.texts[place].clone());
                let (rows, usage) =
                    self.ask(model, of.iter().map(pair), &of, (OutputKind::RAW, None), if_full).await?;
                Ok((Value { of, rows }, usage))
            }
            Does::Classify { model, .. } => {
                let of = self.read(planned, 0, values);
                let (rows, usage) =
                    self.ask(model, self.inputs(&of), &of, (OutputKind::RAW, None), if_full).await?;
                Ok((Value { of, rows }, usage))
            }
            Does::Nearest { scale, .. } => {
                let Read::Step(from) = planned.reads[0] else { unreachable!("a request has no vectors") };
                let Does::Embed { model, prompt, .. } = &self.plan.steps[from].step.does else {
                    unreachable!("only embedding gives vectors")
                };
                let labels = &self.labels[place];
                let vectors = labels.of(&self.members[model], prompt.as_deref()).await?;
                Ok((nearest(&values[from], &vectors, *scale), Usage::default()))
            }
            Does::Mean { .. } => {
                let read = |read: &Read| match read {
                    Read::Step(at) => &values[*at],
                    Read::Query | Read::Texts => unreachable!("a request has no logits"),
                };
                Ok((mean(&planned.reads.iter().map(read).collect::<Vec<_>>())?, Usage::default()))
            }
        }
    }

    /// Whether a request may still be refused at this step. It may not be refused after the first wave, nor for the
    /// room that it takes itself where several steps of that wave ask the same model.
    fn is_first(&self, place: usize) -> bool {
        let asked = |planned: &Planned| planned.step.does.model().map(|name| self.members[name].load());
        let steps = &self.plan.steps;
        steps[place].wave == 0 && steps[..place].iter().all(|before| asked(before) != asked(&steps[place]))
    }

    /// The texts that a step reads, by their places.
    fn read(&self, planned: &Planned, nth: usize, values: &[Value]) -> Vec<usize> {
        match planned.reads[nth] {
            Read::Step(at) => values[at].of.clone(),
            Read::Query | Read::Texts => (0..self.texts.len()).collect(),
        }
    }

    fn inputs(&self, of: &[usize]) -> impl Iterator<Item = Input> + Send {
        of.iter().map(|&place| Input::Text(self.texts[place].clone()))
    }

    /// The texts nearest to the query, in their own order.
    async fn retrieve(
        &self,
        model: &str,
        of: Vec<usize>,
        keep: usize,
        [query_prompt, texts_prompt]: [Option<String>; 2],
        if_full: IfFull,
    ) -> Result<Done, EngineError> {
        let query = std::iter::once_with(|| Input::Text(self.query.to_owned()));
        // The texts first: together with the query they may need more room than even an idle model has.
        let ((texts, mut usage), (query, took)) = try_join(
            self.ask(model, self.inputs(&of), &of, (UNIT, texts_prompt), if_full),
            // All of the texts have this query; an error names the first text.
            self.ask(model, query, &[0], (UNIT, query_prompt), IfFull::Waits),
        )
        .await?;
        usage.add_work(&took);
        let score = |row: &Row| dot(&row.values, &query[0].values);
        let mut near: Vec<(f32, usize)> = texts.iter().map(score).zip(of).collect();
        // No later step sees these values: one that is not a number would silently order the texts wrongly.
        if near.iter().any(|(score, _)| !score.is_finite()) {
            let why = format!("model `{model}` gave a vector with a value that is not a finite number");
            return Err(EngineError::Backend(why));
        }
        near.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut kept: Vec<usize> = near.into_iter().take(keep).map(|(_, place)| place).collect();
        kept.sort_unstable();
        Ok((Value { of: kept, rows: Vec::new() }, usage))
    }

    /// The answer of a model to `inputs`, which are made from the texts in the places `of`.
    async fn ask(
        &self,
        model: &str,
        inputs: impl Iterator<Item = Input> + Send,
        of: &[usize],
        (output, prompt): (OutputKind, Option<String>),
        if_full: IfFull,
    ) -> Result<(Vec<Row>, Usage), EngineError> {
        let request = InferRequest {
            truncation: self.truncation,
            prompt_name: prompt.into(),
            retries: self.retries,
            continues: true,
            ..InferRequest::new(Vec::new(), output)
        };
        let answer = infer_in_parts(self.members[model].engine(), request, inputs, if_full).await;
        let answer = answer.map_err(|error| error.renumbered(|input| self.numbers[of[input]]))?;
        Ok((answer.rows, answer.usage))
    }
}

/// Rows of norm 1, as comparisons need them.
pub(super) const UNIT: OutputKind = OutputKind::Pooled { normalize: true, dimensions: None };

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// For each vector, its cosines to those of the labels, times `scale`.
fn nearest(vectors: &Value, labels: &[Vec<f32>], scale: f32) -> Value {
    let logits = |row: &Row| {
        let values: Vec<f32> = labels.iter().map(|label| scale * dot(&row.values, label)).collect();
        Row { row_len: values.len(), values, tokens: row.tokens }
    };
    Value { of: vectors.of.clone(), rows: vectors.rows.iter().map(logits).collect() }
}

/// The mean of the rows, for the texts that all values have.
fn mean(values: &[&Value]) -> Result<Value, EngineError> {
    let row_of = |value: &&Value, place: usize| {
        let at = value.of.iter().position(|of| *of == place)?;
        Some(value.rows[at].clone())
    };
    let mut mean = Value::default();
    for &place in &values[0].of {
        let Some(rows) = values.iter().map(|value| row_of(value, place)).collect::<Option<Vec<Row>>>() else {
            continue;
        };
        let row_len = rows[0].row_len;
        if rows.iter().any(|row| row.row_len != row_len) {
            let why = "models whose logits are averaged have different labels";
            return Err(EngineError::Backend(why.to_owned()));
        }
        let sum = |at: usize| rows.iter().map(|row| row.values[at]).sum::<f32>();
        let values = (0..row_len).map(|at| sum(at) / rows.len() as f32).collect();
        mean.of.push(place);
        mean.rows.push(Row { values, row_len, tokens: rows.iter().map(|row| row.tokens).sum() });
    }
    Ok(mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(rows: &[(usize, &[f32])]) -> Value {
        let row = |values: &[f32]| Row { values: values.to_vec(), row_len: values.len(), tokens: 3 };
        Value {
            of: rows.iter().map(|(place, _)| *place).collect(),
            rows: rows.iter().map(|(_, values)| row(values)).collect(),
        }
    }

    fn plain(value: &Value) -> Vec<(usize, Vec<f32>)> {
        value.of.iter().copied().zip(value.rows.iter().map(|row| row.values.clone())).collect()
    }

    #[test]
    fn a_mean_is_of_what_all_have() {
        let first = value(&[(0, &[1.0, 5.0]), (2, &[2.0, 2.0]), (3, &[9.0, 9.0])]);
        let second = value(&[(2, &[4.0, 0.0]), (0, &[3.0, 1.0])]);
        let both = mean(&[&first, &second]).unwrap();
        assert_eq!(plain(&both), [(0, vec![2.0, 3.0]), (2, vec![3.0, 1.0])]);
        assert_eq!(both.rows[0].tokens, 6);
        assert!(mean(&[&first, &value(&[(0, &[1.0])])]).is_err());
    }

    #[test]
    fn a_label_is_as_near_as_its_vector() {
        let vectors = value(&[(1, &[0.6, 0.8])]);
        let labels = [vec![1.0, 0.0], vec![0.0, 1.0]];
        assert_eq!(plain(&nearest(&vectors, &labels, 10.0)), [(1, vec![6.0, 8.0])]);
    }
}
