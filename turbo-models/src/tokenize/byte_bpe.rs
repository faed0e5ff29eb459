//! The tokenizer of older folders of RoBERTa: `vocab.json` with the ids of its tokens, `merges.txt` with the pairs that
//! become one token, in their order, and `tokenizer_config.json`.

use std::{collections::BTreeMap, fs, path::Path};

use tokenizers::{
    AddedToken, Tokenizer,
    models::bpe::{BPE, Merges, Vocab},
    pre_tokenizers::byte_level::ByteLevel,
    processors::roberta::RobertaProcessing,
};

use super::{
    file::guarded,
    named::NamedTokens,
    older::{Vocabulary, add_special_tokens, add_tokens, with_id},
};
use crate::{
    ModelError,
    error::one_line,
    json::{JsonObject, read_json},
};

pub(super) const BYTE_BPE: Vocabulary = Vocabulary {
    files: &[IDS, MERGES],
    classes: &["RobertaTokenizer", "BartTokenizer", "LongformerTokenizer"],
    open,
};

const IDS: &str = "vocab.json";
const MERGES: &str = "merges.txt";

/// RoBERTa's tokenizer, as the reference builds it from `vocab.json` and `merges.txt` of the folder `dir` and from
/// `config`, which is `tokenizer_config.json`.
fn open(dir: &Path, config: Option<&JsonObject>) -> Result<Tokenizer, ModelError> {
    let file = dir.join(IDS);
    let vocabulary: BTreeMap<String, u32> = read_json(&file)?.unwrap_or_default();
    let vocabulary: Vocab = vocabulary.into_iter().collect();
    let merges = read_merges(&dir.join(MERGES))?;
    let wrong = |why: String| ModelError::Tokenizer { file: file.clone(), why };
    let model = guarded(|| BPE::builder().vocab_and_merges(vocabulary, merges).build()).map_err(wrong)?;
    let mut tokenizer = Tokenizer::new(model);
    let prefix_space = config.map_or(Ok(None), |config| config.get("add_prefix_space"))?.unwrap_or(false);
    tokenizer.with_pre_tokenizer(Some(ByteLevel::default().add_prefix_space(prefix_space)));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    let named = NamedTokens::open(dir, config)?;
    let token = |field, usual| named.get_or(field, AddedToken::from(usual, true));
    let (class, separator) = (token("cls_token", "<s>")?, token("sep_token", "</s>")?);
    let (unknown, padding) = (token("unk_token", "<unk>")?, token("pad_token", "<pad>")?);
    // the mask also takes the blanks before it
    let mask = named.get_or("mask_token", AddedToken::from("<mask>", true).lstrip(true))?;
    let special = [&class, &padding, &separator, &unknown, &mask];
    add_special_tokens(&mut tokenizer, &special).map_err(wrong)?;
    add_tokens(&mut tokenizer, dir, config)?;
    let separator = with_id(&tokenizer, &separator).map_err(wrong)?;
    let class = with_id(&tokenizer, &class).map_err(wrong)?;
    let around = RobertaProcessing::new(separator, class).add_prefix_space(prefix_space);
    tokenizer.with_post_processor(Some(around));
    Ok(tokenizer)
}

fn read_merges(file: &Path) -> Result<Merges, ModelError> {
    let text = fs::read_to_string(file).map_err(|why| ModelError::Read { file: file.to_owned(), why })?;
    let lines = text.lines().enumerate();
    let merges = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with("#version"));
    let pair = |(index, line): (usize, &str)| match line.split(' ').collect::<Vec<_>>()[..] {
        [left, right] => Ok((left.to_owned(), right.to_owned())),
        _ => {
            let why = one_line(format!("line {} is {line:?}, expected two tokens", index + 1));
            Err(ModelError::Tokenizer { file: file.to_owned(), why })
        }
    };
    merges.map(pair).collect()
}
