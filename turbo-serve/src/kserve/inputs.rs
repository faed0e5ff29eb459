//! From input tensors to an engine's inputs.

use super::{Elements, InputTensor};
use crate::{
    engine::{Encoded, EngineError, Input, Truncation},
    http::ApiError,
};

const IDS: &str = "input_ids";
const MASK: &str = "attention_mask";
const TYPES: &str = "token_type_ids";

/// The inputs of a request, at most `limit`, in the order of the tensors' rows.
pub(super) fn read(tensors: Vec<InputTensor>, limit: usize) -> Result<Vec<Input>, ApiError> {
    let texts = tensors.iter().filter(|tensor| matches!(tensor.elements, Elements::Bytes(_))).count();
    match (texts, <[InputTensor; 1]>::try_from(tensors)) {
        (1, Ok([text])) => read_texts(text, limit),
        (0, Ok([ids])) => read_ids(vec![ids], limit),
        (0, Err(tensors)) if !tensors.is_empty() => read_ids(tensors, limit),
        _ => Err(ApiError::validation(format!(
            "expected one tensor of texts (`BYTES`), or `{IDS}` of integers with `{MASK}` and `{TYPES}` as needed"
        ))),
    }
}

/// Refuses a number of inputs that the engine would refuse, before memory is allocated for them.
fn check_count(got: usize, limit: usize) -> Result<(), ApiError> {
    match got {
        0 => Err(EngineError::Empty.into()),
        got if got > limit => Err(EngineError::TooManyInputs { got, limit }.into()),
        _ => Ok(()),
    }
}

fn read_texts(tensor: InputTensor, limit: usize) -> Result<Vec<Input>, ApiError> {
    let InputTensor { name, shape, elements } = tensor;
    let Elements::Bytes(strings) = elements else { unreachable!("they were counted") };
    let text = |(index, bytes): (usize, Vec<u8>)| {
        let wrong = |_| ApiError::validation(format!("input `{name}`: element {index} is not UTF-8"));
        String::from_utf8(bytes).map_err(wrong)
    };
    let mut texts = strings.into_iter().enumerate().map(text);
    match shape[..] {
        [count] | [count, 1] => {
            check_count(count, limit)?;
            texts.map(|text| text.map(Input::Text)).collect()
        }
        [count, 2] => {
            check_count(count, limit)?;
            let mut next = || texts.next().expect("the shape fits the elements");
            (0..count).map(|_| Ok(Input::Pair(next()?, next()?))).collect()
        }
        _ => Err(ApiError::validation(format!(
            "input `{name}`: shape is {shape:?}, expected [n], or [n, 2] for pairs of texts"
        ))),
    }
}

/// A tensor of integers, `[n, len]`.
struct IntTensor {
    name: String,
    shape: [usize; 2],
    values: Vec<i64>,
}

impl IntTensor {
    fn row(&self, index: usize) -> &[i64] {
        &self.values[index * self.shape[1]..][..self.shape[1]]
    }
}

fn read_ids(tensors: Vec<InputTensor>, limit: usize) -> Result<Vec<Input>, ApiError> {
    let (mut ids, mut mask, mut types) = (None, None, None);
    for tensor in tensors {
        let place = match &*tensor.name {
            IDS => &mut ids,
            MASK => &mut mask,
            TYPES => &mut types,
            other => {
                let expected = format!("`{IDS}`, `{MASK}` or `{TYPES}`, or texts as `BYTES`");
                return Err(ApiError::validation(format!(
                    "input `{other}` is not known: expected {expected}"
                )));
            }
        };
        if place.replace(integers(tensor)?).is_some() {
            return Err(ApiError::validation("an input is given twice"));
        }
    }
    let ids = ids.ok_or_else(|| ApiError::validation(format!("input `{IDS}` is missing")))?;
    for other in [&mask, &types].into_iter().flatten() {
        if other.shape != ids.shape {
            let (name, shape, expected) = (&other.name, other.shape, ids.shape);
            let said = format!("input `{name}`: shape is {shape:?}, expected that of `{IDS}`, {expected:?}");
            return Err(ApiError::validation(said));
        }
    }
    check_count(ids.shape[0], limit)?;
    (0..ids.shape[0]).map(|index| sequence(&ids, mask.as_ref(), types.as_ref(), index)).collect()
}

fn integers(tensor: InputTensor) -> Result<IntTensor, ApiError> {
    let InputTensor { name, shape, elements } = tensor;
    match (<[usize; 2]>::try_from(shape), elements) {
        // A client could claim any number of rows without sending a byte.
        (Ok([rows, 0]), _) => Err(ApiError::validation(format!(
            "input `{name}`: shape is {:?}, expected ids in a row",
            [rows, 0]
        ))),
        (Ok(shape), Elements::Integers(values)) => Ok(IntTensor { name, shape, values }),
        (Err(shape), _) => {
            Err(ApiError::validation(format!("input `{name}`: shape is {shape:?}, expected [n, len]")))
        }
        (_, Elements::Bytes(_)) => Err(ApiError::validation(format!("input `{name}`: expected integers"))),
    }
}

/// One row, without its padding. Types that are all 0 are the default, and are left out.
fn sequence(
    ids: &IntTensor,
    mask: Option<&IntTensor>,
    types: Option<&IntTensor>,
    index: usize,
) -> Result<Input, ApiError> {
    let kept = match mask {
        Some(mask) => kept(mask, index)?,
        None => 0..ids.shape[1],
    };
    let read = |tensor: &IntTensor| -> Result<Vec<u32>, ApiError> {
        let value = |&value: &i64| {
            let wrong = |_| {
                let name = &tensor.name;
                ApiError::validation(format!(
                    "input `{name}`: {value} in row {index} is not from 0 to 4294967295"
                ))
            };
            u32::try_from(value).map_err(wrong)
        };
        tensor.row(index)[kept.clone()].iter().map(value).collect()
    };
    let input_ids = read(ids)?;
    let token_type_ids = types.map(read).transpose()?.unwrap_or_default();
    Ok(match token_type_ids.iter().all(|&id| id == 0) {
        true => Input::Ids(input_ids),
        false => Input::Encoded(Encoded { input_ids, token_type_ids, selected: Vec::new() }),
    })
}

/// Cuts ids that are too long, and their types with them. Ids without types are left to the engine: it knows which of
/// them a model leaves out as padding, and those must not displace others. (No model that leaves some out has types.)
pub(super) fn cut(encoded: &mut Encoded, truncation: Truncation, limit: usize) {
    for list in [&mut encoded.input_ids, &mut encoded.token_type_ids] {
        match truncation {
            Truncation::Off => {} // which the engine refuses
            Truncation::Left => drop(list.drain(..list.len().saturating_sub(limit))),
            Truncation::Right => list.truncate(limit),
        }
    }
}

/// The range of a mask's row that is not 0. Padding must be at one end: the model would see the gap left by any other.
fn kept(mask: &IntTensor, index: usize) -> Result<std::ops::Range<usize>, ApiError> {
    let row = mask.row(index);
    let first = row.iter().position(|&bit| bit != 0).unwrap_or(row.len());
    let end = row.iter().rposition(|&bit| bit != 0).map_or(first, |last| last + 1);
    let padded_at_one_end = first == 0 || end == row.len();
    if padded_at_one_end && row[first..end].iter().all(|&bit| bit != 0) {
        return Ok(first..end);
    }
    Err(ApiError::validation(format!(
        "input `{MASK}`: row {index} has zeros between ones or at both ends, expected them at one end"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 4;

    fn read(tensors: Vec<InputTensor>) -> Result<Vec<Input>, ApiError> {
        super::read(tensors, LIMIT)
    }

    fn ints(name: &str, shape: &[usize], values: &[i64]) -> InputTensor {
        let elements = Elements::Integers(values.to_vec());
        InputTensor { name: name.to_owned(), shape: shape.to_vec(), elements }
    }

    fn texts(shape: &[usize], texts: &[&str]) -> InputTensor {
        let elements = Elements::Bytes(texts.iter().map(|text| text.as_bytes().to_vec()).collect());
        InputTensor { name: "any".to_owned(), shape: shape.to_vec(), elements }
    }

    #[test]
    fn texts_are_rows_and_pairs_are_rows_of_two() {
        let text = |text: &str| Input::Text(text.to_owned());
        assert_eq!(read(vec![texts(&[2], &["a", "b"])]).unwrap(), [text("a"), text("b")]);
        assert_eq!(read(vec![texts(&[2, 1], &["a", "b"])]).unwrap(), [text("a"), text("b")]);
        let pairs = read(vec![texts(&[2, 2], &["a", "b", "c", "d"])]).unwrap();
        let pair = |first: &str, second: &str| Input::Pair(first.to_owned(), second.to_owned());
        assert_eq!(pairs, [pair("a", "b"), pair("c", "d")]);
    }

    #[test]
    fn ids_leave_their_padding_behind() {
        let ids = || ints(IDS, &[3, 3], &[1, 2, 3, 4, 5, 0, 0, 0, 6]);
        let mask = ints(MASK, &[3, 3], &[1, 1, 1, 1, 1, 0, 0, 0, 1]);
        let plain = |ids: &[u32]| Input::Ids(ids.to_vec());
        assert_eq!(read(vec![ids()]).unwrap()[1], plain(&[4, 5, 0]), "without a mask nothing is padding");
        assert_eq!(
            read(vec![mask.clone(), ids()]).unwrap(),
            [plain(&[1, 2, 3]), plain(&[4, 5]), plain(&[6])]
        );
        let types = ints(TYPES, &[3, 3], &[0, 1, 1, 0, 1, 0, 0, 0, 1]);
        let second = Encoded { input_ids: vec![4, 5], token_type_ids: vec![0, 1], selected: Vec::new() };
        assert_eq!(read(vec![ids(), types, mask]).unwrap()[1], Input::Encoded(second));
        let nothing = ints(MASK, &[3, 3], &[0; 9]);
        assert_eq!(read(vec![ids(), nothing]).unwrap()[0], plain(&[]), "which the engine refuses");
    }

    #[test]
    fn types_that_are_all_0_say_nothing() {
        let ids = || ints(IDS, &[2, 2], &[1, 2, 3, 4]);
        let read = read(vec![ids(), ints(TYPES, &[2, 2], &[0, 0, 0, 1])]).unwrap();
        let second = Encoded { input_ids: vec![3, 4], token_type_ids: vec![0, 1], selected: Vec::new() };
        assert_eq!(read, [Input::Ids(vec![1, 2]), Input::Encoded(second)]);
    }

    #[test]
    fn ids_and_their_types_are_cut_together() {
        let typed = |input_ids: &[u32], token_type_ids: &[u32]| {
            let (input_ids, token_type_ids) = (input_ids.to_vec(), token_type_ids.to_vec());
            Encoded { input_ids, token_type_ids, selected: Vec::new() }
        };
        let whole = || typed(&[1, 2, 3, 4], &[0, 0, 1, 1]);
        for (truncation, limit, expected) in [
            (Truncation::Right, 3, typed(&[1, 2, 3], &[0, 0, 1])),
            (Truncation::Left, 3, typed(&[2, 3, 4], &[0, 1, 1])),
            (Truncation::Left, 5, whole()),
            (Truncation::Off, 3, whole()),
        ] {
            let mut encoded = whole();
            cut(&mut encoded, truncation, limit);
            assert_eq!(encoded, expected, "{truncation:?} to {limit}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_told() {
        let ids = || ints(IDS, &[1, 3], &[1, 2, 3]);
        for (tensors, said) in [
            (vec![], "expected one tensor of texts (`BYTES`), or `input_ids`"),
            (vec![texts(&[1], &["a"]), ids()], "expected one tensor of texts"),
            (vec![texts(&[1], &["a"]), texts(&[1], &["b"])], "expected one tensor of texts"),
            (vec![texts(&[1, 3], &["a", "b", "c"])], "input `any`: shape is [1, 3], expected [n]"),
            (vec![texts(&[], &["a"])], "shape is [], expected [n]"),
            (vec![texts(&[5], &["a"; 5])], "batch size 5 > maximum"),
            (vec![texts(&[5, 2], &["a"; 10])], "batch size 5 > maximum"),
            (vec![texts(&[0, 2], &[])], "cannot be empty"),
            (vec![ints(IDS, &[5, 1], &[1; 5])], "batch size 5 > maximum"),
            (vec![ints("x", &[1, 3], &[1, 2, 3])], "input `x` is not known: expected `input_ids`"),
            (vec![ids(), ids()], "given twice"),
            (vec![ints(MASK, &[1, 1], &[1])], "input `input_ids` is missing"),
            (vec![ints(IDS, &[3], &[1, 2, 3])], "input `input_ids`: shape is [3], expected [n, len]"),
            (vec![ints(IDS, &[1 << 40, 0], &[])], "shape is [1099511627776, 0], expected ids in a row"),
            (vec![ids(), ints(MASK, &[1, 2], &[1, 1])], "expected that of `input_ids`, [1, 3]"),
            (vec![ids(), ints(MASK, &[1, 3], &[1, 0, 1])], "row 0 has zeros between ones"),
            (vec![ids(), ints(MASK, &[1, 3], &[0, 1, 0])], "row 0 has zeros between ones or at both ends"),
            (vec![ints(IDS, &[1, 1], &[-1])], "-1 in row 0 is not from 0 to 4294967295"),
        ] {
            let error = read(tensors).unwrap_err();
            assert!(error.message().contains(said), "{}", error.message());
        }
        let elements = Elements::Bytes(vec![b"a".to_vec(), vec![0xff]]);
        let error = read(vec![InputTensor { name: "t".into(), shape: vec![2], elements }]).unwrap_err();
        assert_eq!(error.message(), "input `t`: element 1 is not UTF-8");
    }
}
