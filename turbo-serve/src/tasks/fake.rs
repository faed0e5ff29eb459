//! An engine for tests of tasks: it takes two inputs at a time, and often has no room.

use std::{
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::Duration,
};

use crate::engine::{
    DecodeRequest, Encoding, EngineError, EngineInfo, Extent, Health, Infer, InferRequest, InferResponse,
    Input, MaskToken, ModelInfo, OutputKind, Pending, Pooling, Prompts, Row, RowLens, ScoreFunction, Task,
    Texts, TokenizeRequest, Tokenized, Usage,
};

/// Ids of its vocabulary: the letters, from 1 on.
const VOCAB_SIZE: usize = 27;

/// The info of a model that takes two inputs at a time and whose mask is `a`.
pub(super) fn info() -> EngineInfo {
    let model = ModelInfo {
        model_id: "fake".to_owned(),
        sha: None,
        name: "fake".to_owned(),
        dtype: "float32",
        device: "test".to_owned(),
        task: Pooling::Mean.into(),
        labels: ["O".to_owned(), "X".to_owned()].into(),
        score_function: ScoreFunction::Identity,
        pair_score_function: ScoreFunction::Sigmoid,
        mask_token: Some(MaskToken { id: 1, text: "a".to_owned() }),
        prompts: Prompts::default(),
        takes_instruction: false,
        rows: RowLens { pooled: Some(1), tokens: Some(2), selected: Some(VOCAB_SIZE) },
        max_input_length: 8,
        vocab_size: VOCAB_SIZE,
        type_vocab_size: 1,
    };
    EngineInfo {
        model,
        max_input_length: 8,
        max_batch_tokens: 8,
        max_batch_requests: None,
        max_client_batch_size: 2,
        max_concurrent_requests: 8,
        auto_truncate: true,
        tokenization_workers: 0,
        cache_bytes: None,
        version: "1.2.3",
    }
}

/// Has no room for every second request of a kind. Each letter is a token. A context has three windows, each of which
/// holds all of it.
pub(super) struct Crowded {
    info: EngineInfo,
    /// Requests that came: for tokens, for rows, for texts.
    came: [AtomicUsize; 3],
}

impl Crowded {
    /// An engine with a model for this task.
    pub(super) fn new(task: Task) -> Self {
        let mut info = info();
        info.model.task = task;
        Self { info, came: [0; 3].map(AtomicUsize::new) }
    }

    fn answer<T: Send + 'static>(&self, kind: usize, answer: T) -> Pending<'_, T> {
        let is_full = self.came[kind].fetch_add(1, SeqCst) % 2 == 1;
        let refused = EngineError::Overloaded { retry_after: Duration::from_secs(60) };
        Box::pin(async move { if is_full { Err(refused) } else { Ok(answer) } })
    }
}

fn encoding(text: &str) -> Encoding {
    let len = text.len();
    Encoding {
        input_ids: text.bytes().map(|letter| u32::from(letter - b'a') + 1).collect(),
        token_type_ids: vec![0; len],
        tokens: text.chars().map(String::from).collect(),
        offsets: (0..len).map(|at| at..at + 1).collect(),
        word_ids: (0..len).map(|at| u32::try_from(at).ok()).collect(),
        sequence_ids: vec![Some(1); len],
        continues_word: vec![false; len],
        special: vec![false; len],
    }
}

impl Infer for Crowded {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    fn infer(&self, request: InferRequest) -> Pending<'_, InferResponse> {
        let row = |input: &Input| {
            let Input::Encoded(encoded) = input else { panic!("{input:?}") };
            let tokens = encoded.input_ids.len();
            let (rows, row_len) = match request.output {
                OutputKind::Selected => (encoded.selected.len(), VOCAB_SIZE),
                _ => (tokens, 2),
            };
            Row { values: vec![0.0; rows * row_len], row_len, tokens }
        };
        let rows = request.inputs.iter().map(row).collect();
        self.answer(1, InferResponse { rows, usage: Usage::default() })
    }

    fn tokenize(&self, request: TokenizeRequest) -> Pending<'_, Vec<Tokenized>> {
        let tokenized = |texts: Texts| {
            let encodings = match (&texts, request.extent) {
                (Texts::Pair(_, context), Extent::Windows { .. }) => vec![encoding(context); 3],
                (Texts::Pair(text, _) | Texts::One(text), _) => vec![encoding(text)],
            };
            Tokenized { texts, encodings }
        };
        self.answer(0, request.texts.into_iter().map(tokenized).collect())
    }

    fn decode(&self, request: DecodeRequest) -> Pending<'_, Vec<String>> {
        let text = |ids: &Vec<u32>| ids.iter().filter_map(|&id| char::from_u32(id + 96)).collect::<String>();
        self.answer(2, request.ids.iter().map(text).collect())
    }

    fn health(&self) -> Health {
        Health::Ready
    }
}

/// Waits for what a task finds.
pub(super) fn wait<T>(task: impl Future<Output = Result<T, EngineError>>) -> T {
    run(task).unwrap()
}

/// Waits for the end of a task.
pub(super) fn run<T>(task: impl Future<Output = Result<T, EngineError>>) -> Result<T, EngineError> {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(task)
}
