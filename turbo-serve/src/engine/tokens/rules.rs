//! Validates inputs and encodes them: padding, length limits, truncation and prompts are all handled here.
//!
//! In: one input of a request. Out: its [`Encoded`], which the model can run whatever other inputs share its batch.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, OnceLock},
};

use turbo_models::{Text, Truncation};

use crate::engine::{
    DecodeRequest, Encoded, EngineError, Input, Instruction, MAX_SELECTED, Prompt, Texts, Tokenize,
    TokenizeError, TokenizeRequest, Tokenized,
};

/// The bounds of a model, and its tokenizer.
pub(in crate::engine) struct Rules {
    pub tokenizer: Option<Arc<dyn Tokenize>>,
    pub padding_id: Option<u32>,
    pub max_input_length: usize,
    pub vocab_size: usize,
    pub type_vocab_size: usize,
}

/// How the inputs of one request are encoded.
pub(in crate::engine) struct Manner {
    pub truncation: Truncation,
    /// The request's own limit, where it is less than the model's.
    pub max_input_length: Option<usize>,
    pub prompt: Prompt,
    /// The instruction by which pairs are judged, in place of the model's own.
    pub instruction: Option<Instruction>,
    /// Whether each input has to select tokens.
    pub selects: bool,
    /// The tokenizer with the request's own limit or instruction, once it is made.
    pub tokenizer: OnceLock<Result<Arc<dyn Tokenize>, EngineError>>,
}

impl Manner {
    /// Rejects an input that is not a pair of texts, where there is an instruction.
    fn check_pair(&self, input: usize, value: &Input) -> Result<(), EngineError> {
        match (&self.instruction, value) {
            (None, _) | (Some(_), Input::Pair(..)) => Ok(()),
            (Some(_), _) => Err(EngineError::InstructionNeedsPair { input }),
        }
    }
}

impl Rules {
    /// Validates and encodes `value`, input number `input` of its request.
    pub(in crate::engine) fn encode(
        &self,
        input: usize,
        value: &Input,
        manner: &Manner,
    ) -> Result<Encoded, EngineError> {
        let (truncation, prompt) = (manner.truncation, &manner.prompt);
        let limit = manner.max_input_length.unwrap_or(self.max_input_length);
        manner.check_pair(input, value)?;
        let encode = |text: Text<'_>| {
            let encoded = ask(self.tokenizer_for(manner)?, input, |it| it.encode(text, truncation));
            match manner.max_input_length {
                None => encoded,
                Some(_) => encoded.map_err(|error| no_room(error, truncation)),
            }
        };
        let mut encoded = match value {
            Input::Text(text) => encode(Text::One(&prompt.before(text)))?,
            Input::Pair(first, second) => {
                prompt.check(input)?;
                encode(Text::Pair(first, second))?
            }
            Input::Ids(ids) => {
                prompt.check(input)?;
                // Padding is removed before ids are cut, so that no token is cut off for it.
                let ids = cut(input, self.unpadded(ids), truncation, limit)?;
                Encoded { input_ids: ids.to_vec(), ..Encoded::default() }
            }
            Input::Encoded(encoded) => {
                prompt.check(input)?;
                encoded.clone()
            }
        };
        // A tokenizer's output is checked, too: it may ignore the limit, and its vocabulary may exceed the model's.
        let tokens = self.unpadded(&encoded.input_ids);
        let tokens = cut(input, tokens, Truncation::Off, self.max_input_length)?.len();
        self.check_ids(input, &encoded)?;
        encoded.input_ids.truncate(tokens);
        encoded.token_type_ids.truncate(tokens);
        // Checked against what is left: removed padding has no rows.
        check_selection(input, &encoded, manner.selects)?;
        Ok(encoded)
    }

    /// `ids` without the padding at their end; if all are padding, the first stays.
    fn unpadded<'a>(&self, ids: &'a [u32]) -> &'a [u32] {
        let last = ids.iter().rposition(|&id| Some(id) != self.padding_id).unwrap_or(0);
        &ids[..ids.len().min(last + 1)]
    }

    /// Tokenizes text number `input` of `request`.
    pub(in crate::engine) fn tokens(
        &self,
        input: usize,
        request: &TokenizeRequest,
    ) -> Result<Tokenized, EngineError> {
        let prompt = &request.prompt;
        let texts = match &request.texts[input] {
            Texts::One(text) => Texts::One(prompt.before(text).into_owned()),
            Texts::Pair(first, second) => {
                prompt.check(input)?;
                Texts::Pair(first.clone(), second.clone())
            }
        };
        let text = match &texts {
            Texts::One(text) => Text::One(text),
            Texts::Pair(first, second) => Text::Pair(first, second),
        };
        let encodings = ask(self.tokenizer()?, input, |it| it.tokens(text, request.extent))?;
        Ok(Tokenized { texts, encodings })
    }

    /// Decodes list number `input` of the ids of `request`.
    pub(in crate::engine) fn decode(
        &self,
        input: usize,
        request: &DecodeRequest,
    ) -> Result<String, EngineError> {
        ask(self.tokenizer()?, input, |it| it.decode(&request.ids[input], request.special))
    }

    fn tokenizer(&self) -> Result<&Arc<dyn Tokenize>, EngineError> {
        self.tokenizer.as_ref().ok_or(EngineError::NoTokenizer)
    }

    /// The tokenizer that all inputs of a request share.
    fn tokenizer_for<'a>(&'a self, manner: &'a Manner) -> Result<&'a Arc<dyn Tokenize>, EngineError> {
        let mut tokenizer = self.tokenizer()?;
        if manner.max_input_length.is_some() || manner.instruction.is_some() {
            let made = manner.tokenizer.get_or_init(|| own_tokenizer(tokenizer, manner));
            tokenizer = made.as_ref().map_err(EngineError::clone)?;
        }
        Ok(tokenizer)
    }

    fn check_ids(&self, input: usize, encoded: &Encoded) -> Result<(), EngineError> {
        let Encoded { input_ids, token_type_ids, .. } = encoded;
        let (tokens, types) = (input_ids.len(), token_type_ids.len());
        if tokens == 0 {
            return Err(EngineError::EmptyInput { input });
        }
        let vocab_size = self.vocab_size;
        if let Some(&id) = input_ids.iter().find(|&&id| id as usize >= vocab_size) {
            return Err(EngineError::InvalidId { input, id, vocab_size });
        }
        let wrong = |why| Err(EngineError::InvalidTokenTypes { input, why });
        if types != 0 && types != tokens {
            return wrong(format!("it has {types} token types for {tokens} tokens"));
        }
        let limit = self.type_vocab_size.max(1);
        match token_type_ids.iter().find(|&&id| id as usize >= limit) {
            Some(id) => wrong(format!("it has token type {id}, the model's are below {limit}")),
            None => Ok(()),
        }
    }
}

/// The tokenizer with the limit and the instruction of one request.
fn own_tokenizer(tokenizer: &Arc<dyn Tokenize>, manner: &Manner) -> Result<Arc<dyn Tokenize>, EngineError> {
    let told = match &manner.instruction {
        None => Arc::clone(tokenizer),
        Some(instruction) => instruction.told_to(tokenizer, || {
            let told = guarded(tokenizer, |it| it.with_instruction(instruction.as_str()));
            told.map_err(|error| EngineError::InvalidInstruction(error.to_string()))
        })?,
    };
    match manner.max_input_length {
        None => Ok(told),
        Some(limit) => ask(&told, 0, |it| Ok(it.limited_to(limit))),
    }
}

/// Asks the tokenizer about an input.
fn ask<T>(
    tokenizer: &Arc<dyn Tokenize>,
    input: usize,
    question: impl FnOnce(&dyn Tokenize) -> Result<T, TokenizeError>,
) -> Result<T, EngineError> {
    guarded(tokenizer, question).map_err(|error| match error {
        TokenizeError::TooLong { tokens, limit } => EngineError::TooLong { input, tokens, limit },
        TokenizeError::Failed(why) => EngineError::Tokenizer { input, why },
    })
}

/// Calls the tokenizer. It is foreign code that reads arbitrary text, so a panic must fail one request only.
fn guarded<T>(
    tokenizer: &Arc<dyn Tokenize>,
    question: impl FnOnce(&dyn Tokenize) -> Result<T, TokenizeError>,
) -> Result<T, TokenizeError> {
    catch_unwind(AssertUnwindSafe(|| question(&**tokenizer)))
        .unwrap_or_else(|_| Err(TokenizeError::Failed("it panicked on this text".into())))
}

/// At most `limit` of `ids`, cut as `truncation` says.
fn cut(input: usize, ids: &[u32], truncation: Truncation, limit: usize) -> Result<&[u32], EngineError> {
    let tokens = ids.len();
    match truncation {
        _ if tokens <= limit => Ok(ids),
        Truncation::Off => Err(EngineError::TooLong { input, tokens, limit }),
        Truncation::Left => Ok(&ids[tokens - limit..]),
        Truncation::Right => Ok(&ids[..limit]),
    }
}

/// The error of an input that is too long although it is cut: not even its special tokens have room.
fn no_room(error: EngineError, truncation: Truncation) -> EngineError {
    match error {
        EngineError::TooLong { input, limit, .. } if truncation != Truncation::Off => {
            let why = format!("its special tokens alone are more than the limit of {limit}: allow more");
            EngineError::InvalidInput { input, why }
        }
        other => other,
    }
}

fn check_selection(input: usize, encoded: &Encoded, selects: bool) -> Result<(), EngineError> {
    let (selected, tokens) = (&encoded.selected, encoded.input_ids.len());
    let wrong = |why| Err(EngineError::InvalidSelection { input, why });
    if selects && selected.is_empty() {
        return wrong("it selects no token".into());
    }
    if selected.len() > MAX_SELECTED {
        return wrong(format!("it selects {} tokens, at most {MAX_SELECTED} are possible", selected.len()));
    }
    if !selected.is_sorted_by(|a, b| a < b) {
        return wrong("the tokens it selects are not in ascending order, each once".into());
    }
    match selected.last() {
        Some(&last) if last as usize >= tokens => wrong(format!("it selects token {last} of {tokens}")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Encoding, Extent, SpecialTokens};

    const RULES: Rules =
        Rules { tokenizer: None, padding_id: None, max_input_length: 3, vocab_size: 10, type_vocab_size: 2 };

    fn manner(truncation: Truncation, selects: bool) -> Manner {
        let (prompt, tokenizer) = (Prompt::None, OnceLock::new());
        Manner { truncation, max_input_length: None, prompt, instruction: None, selects, tokenizer }
    }

    fn encode(value: Input, truncation: Truncation, selects: bool) -> Result<Encoded, EngineError> {
        RULES.encode(7, &value, &manner(truncation, selects))
    }

    #[test]
    fn ids_are_checked_and_cut() {
        let too_long = EngineError::TooLong { input: 7, tokens: 4, limit: 3 };
        let invalid = EngineError::InvalidId { input: 7, id: 10, vocab_size: 10 };
        for (ids, truncation, expected) in [
            (&[1, 2, 3][..], Truncation::Off, Ok(&[1, 2, 3][..])),
            (&[1, 2, 3, 4], Truncation::Off, Err(too_long)),
            (&[1, 2, 3, 4], Truncation::Left, Ok(&[2, 3, 4])),
            (&[1, 2, 3, 4], Truncation::Right, Ok(&[1, 2, 3])),
            (&[1, 2, 3, 10], Truncation::Right, Ok(&[1, 2, 3])),
            (&[9, 10], Truncation::Off, Err(invalid)),
            (&[], Truncation::Off, Err(EngineError::EmptyInput { input: 7 })),
        ] {
            let got = encode(Input::Ids(ids.to_vec()), truncation, false);
            assert_eq!(got.map(|encoded| encoded.input_ids), expected.map(<[u32]>::to_vec), "{ids:?}");
        }
    }

    #[test]
    fn what_comes_encoded_is_checked_and_never_cut() {
        let all = |input_ids: &[u32], token_type_ids: &[u32], selected: &[u32]| {
            let (input_ids, token_type_ids) = (input_ids.to_vec(), token_type_ids.to_vec());
            Encoded { input_ids, token_type_ids, selected: selected.to_vec() }
        };
        for (encoded, selects, said) in [
            (all(&[1, 2, 3], &[0, 1, 1], &[0, 2]), true, None),
            (all(&[1, 2, 3], &[], &[]), false, None),
            (all(&[1, 2, 3, 4], &[], &[]), false, Some("has at least 4 tokens, at most 3 are possible")),
            (all(&[1, 2], &[0], &[]), false, Some("input 7: it has 1 token types for 2 tokens")),
            (all(&[1], &[2], &[]), false, Some("input 7: it has token type 2, the model's are below 2")),
            (all(&[1], &[], &[1]), false, Some("input 7: it selects token 1 of 1")),
            (all(&[1, 2], &[], &[1, 0]), false, Some("are not in ascending order")),
            (all(&[1, 2], &[], &[1, 1]), false, Some("are not in ascending order, each once")),
            (all(&[1], &[], &[]), true, Some("input 7: it selects no token")),
            (all(&[1], &[], &[0; 129]), true, Some("selects 129 tokens, at most 128")),
        ] {
            let got = encode(Input::Encoded(encoded.clone()), Truncation::Right, selects);
            match (got, said) {
                (Ok(got), None) => assert_eq!(got, encoded),
                (Err(error), Some(said)) => assert!(error.to_string().contains(said), "{error}"),
                (got, said) => panic!("{encoded:?}: got {got:?}, expected {said:?}"),
            }
        }
    }

    #[test]
    fn padding_at_the_end_is_left_out_before_anything_is_cut() {
        let rules = Rules { padding_id: Some(0), ..RULES };
        let encode = |value: Input, truncation| rules.encode(7, &value, &manner(truncation, false));
        let padded = |tokens: &[u32]| [tokens, &[0; 100]].concat();
        for (tokens, truncation, left) in [
            (&[5, 6][..], Truncation::Off, &[5, 6][..]),
            (&[5, 6], Truncation::Left, &[5, 6]),
            (&[5, 0, 6], Truncation::Off, &[5, 0, 6]),
            (&[4, 5, 6, 7], Truncation::Left, &[5, 6, 7]),
            (&[4, 0, 0, 7], Truncation::Right, &[4]),
            (&[], Truncation::Off, &[0]),
        ] {
            let got = encode(Input::Ids(padded(tokens)), truncation).unwrap();
            assert_eq!(got.input_ids, left, "{tokens:?}");
        }
        let typed = |token_type_ids| {
            let encoded = Encoded { input_ids: padded(&[5, 6]), token_type_ids, ..Encoded::default() };
            encode(Input::Encoded(encoded), Truncation::Off)
        };
        let left = Encoded { input_ids: vec![5, 6], token_type_ids: vec![0, 1], ..Encoded::default() };
        assert_eq!(typed(padded(&[0, 1])), Ok(left));
        assert!(matches!(typed(vec![0, 1]), Err(EngineError::InvalidTokenTypes { .. })), "one for each id");
        let selects = |selected: &[u32]| {
            let selected = selected.to_vec();
            let encoded = Encoded { input_ids: padded(&[5, 6]), selected, ..Encoded::default() };
            encode(Input::Encoded(encoded), Truncation::Off).map(|encoded| encoded.selected)
        };
        assert_eq!(selects(&[0, 1]), Ok(vec![0, 1]));
        assert!(matches!(selects(&[1, 2]), Err(EngineError::InvalidSelection { .. })), "2 is padding");
        let tokens = Input::Ids(padded(&[1, 2, 3, 4]));
        let too_long = EngineError::TooLong { input: 7, tokens: 4, limit: 3 };
        assert_eq!(encode(tokens, Truncation::Off), Err(too_long));
    }

    /// Makes each letter a token, without a limit.
    struct Letters;

    impl Tokenize for Letters {
        fn encode(&self, text: Text<'_>, _: Truncation) -> Result<Encoded, TokenizeError> {
            let Text::One(text) = text else { return Err(TokenizeError::Failed("not a text".into())) };
            Ok(Encoded { input_ids: vec![1; text.len()], ..Encoded::default() })
        }

        fn tokens(&self, _: Text<'_>, _: Extent) -> Result<Vec<Encoding>, TokenizeError> {
            Ok(Vec::new())
        }

        fn decode(&self, _: &[u32], _: SpecialTokens) -> Result<String, TokenizeError> {
            Ok(String::new())
        }

        fn limited_to(&self, _: usize) -> Arc<dyn Tokenize> {
            Arc::new(Self)
        }
    }

    #[test]
    fn a_tokenizer_may_give_as_many_tokens_as_the_model_takes() {
        let rules = Rules { tokenizer: Some(Arc::new(Letters)), ..RULES };
        let encode = |text: &str| {
            let encoded = rules.encode(7, &Input::Text(text.into()), &manner(Truncation::Right, false));
            encoded.map(|encoded| encoded.input_ids.len())
        };
        assert_eq!(encode("abc"), Ok(3));
        assert_eq!(encode("abcd"), Err(EngineError::TooLong { input: 7, tokens: 4, limit: 3 }));
    }

    #[test]
    fn text_needs_a_tokenizer() {
        for text in [Input::Text("hello".into()), Input::Pair("a".into(), "b".into())] {
            assert_eq!(encode(text, Truncation::Off, false), Err(EngineError::NoTokenizer));
        }
    }
}
