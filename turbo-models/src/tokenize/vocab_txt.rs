//! The tokenizer of folders older than `tokenizer.json`: `vocab.txt`, one token a line, and `tokenizer_config.json`.

use std::{fs, path::Path};

use tokenizers::{
    AddedToken, Tokenizer, decoders::wordpiece::WordPiece as WordPieceDecoder, models::wordpiece::WordPiece,
    normalizers::BertNormalizer, pre_tokenizers::bert::BertPreTokenizer, processors::bert::BertProcessing,
};

use super::older::{Vocabulary, add_tokens};
use crate::{ModelError, error::one_line, json::JsonObject};

pub(super) const WORD_PIECE: Vocabulary = Vocabulary {
    files: &[FILE],
    classes: &["BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"],
    open,
};

const FILE: &str = "vocab.txt";
const CLS: &str = "[CLS]";
const SEP: &str = "[SEP]";
const UNK: &str = "[UNK]";
/// Tokens that are found in a text as they stand.
const SPECIAL: [&str; 5] = ["[PAD]", UNK, CLS, SEP, "[MASK]"];

/// BERT's tokenizer, as the reference builds it from `vocab.txt` of the folder `dir` and from `config`, which is
/// `tokenizer_config.json`.
fn open(dir: &Path, config: Option<&JsonObject>) -> Result<Tokenizer, ModelError> {
    let file = dir.join(FILE);
    let vocabulary = match fs::read(&file) {
        Ok(vocabulary) => vocabulary,
        Err(source) => return Err(ModelError::Read { file, source }),
    };
    let wrong = |why: String| ModelError::Tokenizer { file: file.clone(), why };
    let vocabulary = WordPiece::read_bytes(&vocabulary).map_err(|error| wrong(one_line(error)))?;
    let word_piece =
        WordPiece::builder().vocab(vocabulary).build().map_err(|error| wrong(one_line(error)))?;
    let mut tokenizer = Tokenizer::new(word_piece);
    tokenizer.with_normalizer(Some(normalizer(config)?)).map_err(|error| wrong(one_line(error)))?;
    tokenizer.with_pre_tokenizer(Some(BertPreTokenizer));
    let id = |token| tokenizer.token_to_id(token).ok_or_else(|| wrong(format!("{token} is missing")));
    let (separator, class, _) = (id(SEP)?, id(CLS)?, id(UNK)?);
    tokenizer.with_post_processor(Some(BertProcessing::new((SEP.into(), separator), (CLS.into(), class))));
    // Not one that the vocabulary lacks: it would get an id of its own, which the model has no row for.
    let known = SPECIAL.into_iter().filter(|token| tokenizer.token_to_id(token).is_some());
    let known: Vec<_> = known.map(|token| AddedToken::from(token, true)).collect();
    tokenizer.add_special_tokens(known).map_err(|error| wrong(one_line(error)))?;
    add_tokens(&mut tokenizer, dir, config)?;
    tokenizer.with_decoder(Some(WordPieceDecoder::default()));
    Ok(tokenizer)
}

fn normalizer(config: Option<&JsonObject>) -> Result<BertNormalizer, ModelError> {
    let flag = |field| config.map_or(Ok(None), |config| config.get::<bool>(field));
    let lowercase = flag("do_lower_case")?.unwrap_or(true);
    let chinese = flag("tokenize_chinese_chars")?.unwrap_or(true);
    Ok(BertNormalizer::new(true, chinese, flag("strip_accents")?, lowercase))
}
