//! The tokenizer of folders older than `tokenizer.json`: `vocab.txt`, one token a line, and `tokenizer_config.json`.

use std::{fs, path::Path};

use tokenizers::{
    AddedToken, Tokenizer, decoders::wordpiece::WordPiece as WordPieceDecoder, models::wordpiece::WordPiece,
    normalizers::BertNormalizer, pre_tokenizers::bert::BertPreTokenizer, processors::bert::BertProcessing,
};

use super::{
    named::NamedTokens,
    older::{Vocabulary, add_special_tokens, add_tokens, with_id},
};
use crate::{ModelError, error::one_line, json::JsonObject};

pub(super) const WORD_PIECE: Vocabulary = Vocabulary {
    files: &[FILE],
    classes: &["BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"],
    open,
};

const FILE: &str = "vocab.txt";

/// BERT's tokenizer, as the reference builds it from `vocab.txt` of the folder `dir` and from `config`, which is
/// `tokenizer_config.json`.
fn open(dir: &Path, config: Option<&JsonObject>) -> Result<Tokenizer, ModelError> {
    let file = dir.join(FILE);
    let vocabulary = match fs::read(&file) {
        Ok(vocabulary) => vocabulary,
        Err(why) => return Err(ModelError::Read { file, why }),
    };
    let wrong = |why: String| ModelError::Tokenizer { file: file.clone(), why };
    let vocabulary = WordPiece::read_bytes(&vocabulary).map_err(|error| wrong(one_line(error)))?;
    let named = NamedTokens::open(dir, config)?;
    let token = |field, usual| named.get_or(field, AddedToken::from(usual, true));
    let (class, separator) = (token("cls_token", "[CLS]")?, token("sep_token", "[SEP]")?);
    let (unknown, padding) = (token("unk_token", "[UNK]")?, token("pad_token", "[PAD]")?);
    let mask = token("mask_token", "[MASK]")?;
    let builder = WordPiece::builder().vocab(vocabulary).unk_token(unknown.content.clone());
    let word_piece = builder.build().map_err(|error| wrong(one_line(error)))?;
    let mut tokenizer = Tokenizer::new(word_piece);
    tokenizer.with_normalizer(Some(normalizer(config)?)).map_err(|error| wrong(one_line(error)))?;
    tokenizer.with_pre_tokenizer(Some(BertPreTokenizer));
    with_id(&tokenizer, &unknown).map_err(wrong)?;
    let special = [&padding, &unknown, &class, &separator, &mask];
    add_special_tokens(&mut tokenizer, &special).map_err(wrong)?;
    add_tokens(&mut tokenizer, dir, config)?;
    let separator = with_id(&tokenizer, &separator).map_err(wrong)?;
    let class = with_id(&tokenizer, &class).map_err(wrong)?;
    tokenizer.with_post_processor(Some(BertProcessing::new(separator, class)));
    tokenizer.with_decoder(Some(WordPieceDecoder::default()));
    Ok(tokenizer)
}

fn normalizer(config: Option<&JsonObject>) -> Result<BertNormalizer, ModelError> {
    let flag = |field| config.map_or(Ok(None), |config| config.get::<bool>(field));
    let lowercase = flag("do_lower_case")?.unwrap_or(true);
    let chinese = flag("tokenize_chinese_chars")?.unwrap_or(true);
    Ok(BertNormalizer::new(true, chinese, flag("strip_accents")?, lowercase))
}
