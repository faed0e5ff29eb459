//! Answers as columns: the columns of each kind of answer, and their values with levels.
//!
//! Levels are Parquet's encoding of missing values and of where lists begin (Melnik et al., "Dremel", VLDB'10).

use std::{io, sync::Arc};

use ::parquet::{
    basic::{LogicalType, Repetition, Type as PhysicalType},
    data_type::{ByteArray, ByteArrayType, DataType, FloatType, Int64Type},
    errors::ParquetError,
    file::writer::{SerializedColumnWriter, SerializedRowGroupWriter},
    schema::types::{Type, TypePtr},
};

use super::super::{Answer, Kind};

/// The column that says why a row has no answer.
pub(super) const ERROR: &str = "error";

/// The rows of a row group.
pub(super) struct Table {
    columns: Vec<(&'static str, Shape, Values)>,
    bytes: usize,
    rows: usize,
}

/// The shape of a column.
#[derive(Clone, Copy, PartialEq)]
enum Shape {
    /// A value per row.
    Required,
    /// A value or none.
    Optional,
    /// A list of values, or none.
    List,
}

enum Values {
    Ints(Levels<i64>),
    Floats(Levels<f32>),
    Texts(Levels<ByteArray>),
}

/// Values, with a definition and a repetition level for each entry of the column.
struct Levels<T> {
    values: Vec<T>,
    /// Bytes of all values.
    bytes: usize,
    definition: Vec<i16>,
    repetition: Vec<i16>,
}

impl<T> Default for Levels<T> {
    fn default() -> Self {
        Self { values: Vec::new(), bytes: 0, definition: Vec::new(), repetition: Vec::new() }
    }
}

impl Table {
    /// The columns are `index`, then those of the kind, then `error`.
    pub(super) fn new(kind: &Kind) -> Self {
        use Shape::{List, Optional, Required};
        let ints = || Values::Ints(Levels::default());
        let floats = || Values::Floats(Levels::default());
        let texts = || Values::Texts(Levels::default());
        let mut columns = vec![("index", Required, ints())];
        match kind {
            Kind::Embedding { .. } => columns.push(("embedding", List, floats())),
            Kind::Labels => columns.extend([("labels", List, texts()), ("scores", List, floats())]),
            Kind::Entities => columns.extend([
                ("entities", List, texts()),
                ("scores", List, floats()),
                ("words", List, texts()),
                ("starts", List, ints()),
                ("ends", List, ints()),
            ]),
            Kind::Ranking { with_text } => {
                columns.extend([("documents", List, ints()), ("scores", List, floats())]);
                columns.extend(with_text.then(|| ("texts", List, texts())));
            }
            Kind::Score { with_text } => {
                columns.push(("score", Optional, floats()));
                columns.extend(with_text.then(|| ("text", Optional, texts())));
            }
        }
        columns.push((ERROR, Optional, texts()));
        Self { columns, bytes: 0, rows: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Bytes of all values, roughly.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn schema(&self) -> TypePtr {
        let fields = self.columns.iter().map(|(name, shape, values)| Arc::new(field(name, *shape, values)));
        let schema = Type::group_type_builder("turbo").with_fields(fields.collect()).build();
        Arc::new(schema.expect("the names and types of a table are always the same few"))
    }

    /// Appends the answer of row `index`, or what was wrong with the row.
    ///
    /// # Errors
    /// When the answer is not of the table's kind.
    pub(super) fn push(&mut self, index: u64, answer: Result<&Answer, &str>) -> io::Result<()> {
        self.rows += 1;
        for (name, shape, values) in &mut self.columns {
            match (*name, answer) {
                ("index", _) => values.ints(*shape, Some([index as i64])),
                (ERROR, answer) => values.texts(*shape, answer.err().map(|error| [error])),
                (_, Err(_)) => values.none(),
                (name, Ok(answer)) => push_cell(name, *shape, values, answer)?,
            }
        }
        self.bytes = self.columns.iter().map(|(_, _, values)| values.bytes()).sum();
        Ok(())
    }

    /// Writes all rows and forgets them.
    ///
    /// # Errors
    /// What the library fails with.
    pub(super) fn write<W: io::Write + Send>(
        &mut self,
        group: &mut SerializedRowGroupWriter<'_, W>,
    ) -> Result<(), ParquetError> {
        for (_, shape, values) in &mut self.columns {
            let writer = group.next_column()?.expect("the schema has a column for each of the table");
            match values {
                Values::Ints(levels) => levels.write::<Int64Type>(*shape, writer)?,
                Values::Floats(levels) => levels.write::<FloatType>(*shape, writer)?,
                Values::Texts(levels) => levels.write::<ByteArrayType>(*shape, writer)?,
            }
        }
        (self.rows, self.bytes) = (0, 0);
        Ok(())
    }
}

fn push_cell(name: &str, shape: Shape, values: &mut Values, answer: &Answer) -> io::Result<()> {
    match (name, answer) {
        ("embedding", Answer::Embedding(vector)) => values.floats(shape, vector.iter().copied()),
        ("score", Answer::Score { score, .. }) => values.floats(shape, [*score]),
        ("text", Answer::Score { text, .. }) => values.texts(shape, text.as_deref().map(|text| [text])),
        ("labels", Answer::Labels(all)) => values.texts(shape, Some(all.iter().map(|class| &*class.label))),
        ("scores", Answer::Labels(all)) => values.floats(shape, all.iter().map(|class| class.score)),
        ("entities", Answer::Entities(all)) => values.texts(shape, Some(all.iter().map(|it| &*it.entity))),
        ("scores", Answer::Entities(all)) => values.floats(shape, all.iter().map(|it| it.score)),
        ("words", Answer::Entities(all)) => values.texts(shape, Some(all.iter().map(|it| &*it.word))),
        ("starts", Answer::Entities(all)) => values.ints(shape, Some(all.iter().map(|it| it.start as i64))),
        ("ends", Answer::Entities(all)) => values.ints(shape, Some(all.iter().map(|it| it.end as i64))),
        ("documents", Answer::Ranking(all)) => values.ints(shape, Some(all.iter().map(|it| it.index as i64))),
        ("scores", Answer::Ranking(all)) => values.floats(shape, all.iter().map(|it| it.score)),
        ("texts", Answer::Ranking(all)) => {
            values.texts(shape, Some(all.iter().map(|it| it.text.as_deref().unwrap_or_default())));
        }
        (name, other) => return Err(io::Error::other(format!("no column {name:?} for {other:?}"))),
    }
    Ok(())
}

fn field(name: &str, shape: Shape, values: &Values) -> Type {
    let (physical, logical) = match values {
        Values::Ints(_) => (PhysicalType::INT64, None),
        Values::Floats(_) => (PhysicalType::FLOAT, None),
        Values::Texts(_) => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String)),
    };
    let primitive = |name: &str, repetition| {
        Type::primitive_type_builder(name, physical)
            .with_repetition(repetition)
            .with_logical_type(logical.clone())
            .build()
            .expect("a known type")
    };
    let group = |name: &str, repetition, inner, logical| {
        Type::group_type_builder(name)
            .with_repetition(repetition)
            .with_logical_type(logical)
            .with_fields(vec![Arc::new(inner)])
            .build()
            .expect("a group of one")
    };
    match shape {
        Shape::Required => primitive(name, Repetition::REQUIRED),
        Shape::Optional => primitive(name, Repetition::OPTIONAL),
        Shape::List => {
            let element = primitive("element", Repetition::REQUIRED);
            let list = group("list", Repetition::REPEATED, element, None);
            group(name, Repetition::OPTIONAL, list, Some(LogicalType::List))
        }
    }
}

impl Values {
    fn none(&mut self) {
        match self {
            Self::Ints(levels) => levels.none(),
            Self::Floats(levels) => levels.none(),
            Self::Texts(levels) => levels.none(),
        }
    }

    fn ints(&mut self, shape: Shape, values: Option<impl IntoIterator<Item = i64>>) {
        let Self::Ints(levels) = self else { unreachable!("the name of a column tells its type") };
        levels.push(shape, values, |_| size_of::<i64>());
    }

    fn floats(&mut self, shape: Shape, values: impl IntoIterator<Item = f32>) {
        let Self::Floats(levels) = self else { unreachable!("the name of a column tells its type") };
        levels.push(shape, Some(values), |_| size_of::<f32>());
    }

    fn texts<'a>(&mut self, shape: Shape, values: Option<impl IntoIterator<Item = &'a str>>) {
        let Self::Texts(levels) = self else { unreachable!("the name of a column tells its type") };
        levels.push(shape, values.map(|values| values.into_iter().map(ByteArray::from)), ByteArray::len);
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Ints(levels) => levels.bytes,
            Self::Floats(levels) => levels.bytes,
            Self::Texts(levels) => levels.bytes,
        }
    }
}

impl<T> Levels<T> {
    fn none(&mut self) {
        self.definition.push(0);
        self.repetition.push(0);
    }

    /// Appends the values of one row; `size` gives the bytes of a value.
    fn push(
        &mut self,
        shape: Shape,
        values: Option<impl IntoIterator<Item = T>>,
        size: impl Fn(&T) -> usize,
    ) {
        let Some(values) = values else { return self.none() };
        let before = self.values.len();
        self.values.extend(values);
        let count = self.values.len() - before;
        self.bytes += self.values[before..].iter().map(size).sum::<usize>();
        if shape == Shape::List && count == 0 {
            self.definition.push(1);
            self.repetition.push(0);
            return;
        }
        // An element of a list has one definition level more than the list.
        let there = if shape == Shape::List { 2 } else { 1 };
        self.definition.resize(self.definition.len() + count, there);
        self.repetition.push(0);
        self.repetition.resize(self.definition.len(), 1);
    }

    fn write<D: DataType<T = T>>(
        &mut self,
        shape: Shape,
        mut writer: SerializedColumnWriter<'_>,
    ) -> Result<(), ParquetError> {
        let definition = (shape != Shape::Required).then_some(&self.definition[..]);
        let repetition = (shape == Shape::List).then_some(&self.repetition[..]);
        writer.typed::<D>().write_batch(&self.values, definition, repetition)?;
        self.values.clear();
        self.bytes = 0;
        self.definition.clear();
        self.repetition.clear();
        writer.close()
    }
}
