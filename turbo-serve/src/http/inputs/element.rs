//! An element of a list of inputs: read at a position, as one of the kinds that are allowed there.

use std::fmt;

use serde::{
    Deserializer,
    de::{DeserializeSeed, Error, SeqAccess, Unexpected, Visitor},
};

/// An element that was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Element {
    Id(u32),
    Text(String),
    Ids(Vec<u32>),
    Texts(Vec<String>),
}

/// What was read by a seed that allows one kind.
impl Element {
    pub(super) fn id(self) -> u32 {
        let Self::Id(id) = self else { self.is_not_allowed() };
        id
    }

    pub(super) fn text(self) -> String {
        let Self::Text(text) = self else { self.is_not_allowed() };
        text
    }

    pub(super) fn ids(self) -> Vec<u32> {
        let Self::Ids(ids) = self else { self.is_not_allowed() };
        ids
    }

    pub(super) fn texts(self) -> Vec<String> {
        let Self::Texts(texts) = self else { self.is_not_allowed() };
        texts
    }

    fn is_not_allowed(&self) -> ! {
        unreachable!("the seed lets no such element through: {self:?}")
    }
}

/// Kinds of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Id,
    Text,
    Ids,
    Texts,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Id => "a token id (an integer from 0 to 4294967295)",
            Self::Text => "a text",
            Self::Ids => "a list of token ids",
            Self::Texts => "a list of texts",
        }
    }
}

/// Where an element is: `[0]`, or `[0][2]` inside an inner list.
#[derive(Clone, Copy, Debug)]
struct Position(usize, Option<usize>);

/// Reads the element at a position.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    position: Position,
    allowed: &'static [Kind],
}

impl At {
    /// In the outermost list.
    pub(super) fn outer(index: usize, allowed: &'static [Kind]) -> Self {
        Self { position: Position(index, None), allowed }
    }

    fn inner(self, index: usize, allowed: &'static [Kind]) -> Self {
        Self { position: Position(self.position.0, Some(index)), allowed }
    }

    fn allows(self, kind: Kind) -> bool {
        self.allowed.contains(&kind)
    }

    fn id<E: Error>(self, id: Option<u32>, got: Unexpected) -> Result<Element, E> {
        match id {
            _ if !self.allows(Kind::Id) => Err(E::invalid_type(got, &self)),
            None => Err(E::invalid_value(got, &self)),
            Some(id) => Ok(Element::Id(id)),
        }
    }
}

/// All of `list`, of which the first elements are already `read`: each of the others is read `at` its index, and is
/// what `of` says.
pub(super) fn read_rest<'de, A: SeqAccess<'de>, T>(
    mut list: A,
    mut read: Vec<T>,
    at: impl Fn(usize) -> At,
    of: impl Fn(Element) -> T,
) -> Result<Vec<T>, A::Error> {
    while let Some(element) = list.next_element_seed(at(read.len()))? {
        read.push(of(element));
    }
    Ok(read)
}

impl<'de> DeserializeSeed<'de> for At {
    type Value = Element;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Element, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for At {
    type Value = Element;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let names: Vec<_> = self.allowed.iter().map(|kind| kind.name()).collect();
        match names.split_last() {
            Some((last, rest)) if !rest.is_empty() => write!(f, "{} or {last}", rest.join(", "))?,
            _ => f.write_str(&names.concat())?,
        }
        match self.position {
            Position(index, None) => write!(f, " at [{index}]"),
            Position(outer, Some(inner)) => write!(f, " at [{outer}][{inner}]"),
        }
    }

    fn visit_u64<E: Error>(self, id: u64) -> Result<Element, E> {
        self.id(id.try_into().ok(), Unexpected::Unsigned(id))
    }

    fn visit_i64<E: Error>(self, id: i64) -> Result<Element, E> {
        self.id(id.try_into().ok(), Unexpected::Signed(id))
    }

    fn visit_f64<E: Error>(self, id: f64) -> Result<Element, E> {
        self.id(None, Unexpected::Float(id))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Element, E> {
        self.visit_string(text.to_owned())
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Element, E> {
        if self.allows(Kind::Text) {
            Ok(Element::Text(text))
        } else {
            Err(E::invalid_type(Unexpected::Str(&text), &self))
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Element, A::Error> {
        if self.allows(Kind::Ids) {
            let at = |index| self.inner(index, &[Kind::Id]);
            Ok(Element::Ids(read_rest(list, Vec::new(), at, Element::id)?))
        } else if self.allows(Kind::Texts) {
            let at = |index| self.inner(index, &[Kind::Text]);
            Ok(Element::Texts(read_rest(list, Vec::new(), at, Element::text)?))
        } else {
            Err(A::Error::invalid_type(Unexpected::Seq, &self))
        }
    }
}
