//! Rows of a Parquet file.

use std::{
    fs::File,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use ::parquet::{
    basic::{Compression, ConvertedType, Type as PhysicalType},
    errors::ParquetError,
    file::{
        metadata::ParquetMetaData,
        reader::{FileReader, SerializedFileReader},
        serialized_reader::ReadOptionsBuilder,
    },
    record::{Field, Row as Record, reader::RowIter},
    schema::types::{SchemaDescriptor, Type},
};

use super::{Cell, Row, positions};
use crate::files::FileError;

/// The wanted columns of every row; other columns are not read. One page of each is in memory at a time.
pub(super) struct Records {
    file: String,
    columns: Vec<String>,
    records: RowIter<'static>,
    /// Rows in the file, according to its metadata.
    pub(super) total: u64,
    number: u64,
    failed: bool,
}

impl Records {
    /// # Errors
    /// [`FileError::Column`]; [`FileError::Broken`] when it is not Parquet, or a column does not hold texts.
    pub(super) fn open(file: String, opened: File, columns: &[String]) -> Result<Self, FileError> {
        let reader = guarded(&file, || with_bytes_for_texts(opened))?;
        let metadata = reader.metadata().file_metadata();
        let total = u64::try_from(metadata.num_rows()).unwrap_or(0);
        check_codecs(&file, reader.metadata(), columns)?;
        let projection = projection(&file, metadata.schema(), columns)?;
        let records = guarded(&file, || RowIter::from_file_into(Box::new(reader)).project(Some(projection)))?;
        Ok(Self { file, columns: columns.to_vec(), records, total, number: 0, failed: false })
    }
}

impl Iterator for Records {
    type Item = Result<Row, FileError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.number == self.total {
            return None;
        }
        self.number += 1;
        let place = format!("{}:{}", self.file, self.number);
        let ended =
            || ParquetError::General(format!("it has {} rows and says {}", self.number - 1, self.total));
        let record = guarded(&place, || self.records.next().unwrap_or_else(|| Err(ended())));
        self.failed = record.is_err();
        Some(record.map(|record| Row {
            number: self.number,
            end: self.number,
            cells: cells(record, &self.columns),
        }))
    }
}

/// Opens a file so that its texts are read as bytes: the library fails on a text that is not UTF-8, and then never
/// reaches the next row.
fn with_bytes_for_texts(file: File) -> Result<SerializedFileReader<File>, ParquetError> {
    let told = SerializedFileReader::new(file.try_clone()?)?;
    let schema = SchemaDescriptor::new(bytes_for_texts(
        told.metadata().file_metadata().schema_descr().root_schema_ptr(),
    )?);
    let options = ReadOptionsBuilder::new().with_parquet_schema(Arc::new(schema)).build();
    SerializedFileReader::new_with_options(file, options)
}

/// The same type, without the annotation that marks bytes as a text.
fn bytes_for_texts(field: Arc<Type>) -> Result<Arc<Type>, ParquetError> {
    let info = field.get_basic_info();
    Ok(match &*field {
        Type::GroupType { basic_info, fields } => {
            let fields = fields.iter().cloned().map(bytes_for_texts).collect::<Result<_, _>>()?;
            Arc::new(Type::GroupType { basic_info: basic_info.clone(), fields })
        }
        Type::PrimitiveType { physical_type: PhysicalType::BYTE_ARRAY, .. }
            if matches!(
                info.converted_type(),
                ConvertedType::UTF8 | ConvertedType::ENUM | ConvertedType::JSON
            ) =>
        {
            let bytes = Type::primitive_type_builder(info.name(), PhysicalType::BYTE_ARRAY);
            Arc::new(bytes.with_repetition(info.repetition()).build()?)
        }
        Type::PrimitiveType { .. } => field,
    })
}

/// Most characters of the library's message about a broken file: it may list the bytes of a whole value.
const SAID: usize = 300;

/// Calls the library, which panics on some corrupt files.
fn guarded<T>(place: &str, call: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, FileError> {
    let broken = |why| FileError::Broken { file: place.to_owned(), why };
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(broken(error.to_string().chars().take(SAID).collect())),
        Err(_) => Err(broken("not sound: the Parquet library gave up on it".to_owned())),
    }
}

/// Checks that this build supports the compression of the wanted columns.
fn check_codecs(file: &str, metadata: &ParquetMetaData, columns: &[String]) -> Result<(), FileError> {
    use Compression::{GZIP, LZ4, LZ4_RAW, SNAPPY, UNCOMPRESSED};
    let chunks = metadata.row_groups().iter().flat_map(|group| group.columns());
    let wanted = |name: Option<&String>| name.is_some_and(|name| columns.contains(name));
    for chunk in chunks.filter(|chunk| wanted(chunk.column_path().parts().first())) {
        if !matches!(chunk.compression(), UNCOMPRESSED | SNAPPY | GZIP(_) | LZ4 | LZ4_RAW) {
            let (name, codec) = (chunk.column_path().string(), chunk.compression());
            let why =
                format!("column {name:?} is compressed with {codec}, expected snappy, gzip, lz4 or nothing");
            return Err(FileError::Broken { file: file.to_owned(), why });
        }
    }
    Ok(())
}

/// The schema with only the wanted columns.
fn projection(file: &str, schema: &Type, columns: &[String]) -> Result<Type, FileError> {
    let fields = schema.get_fields();
    let names: Vec<String> = fields.iter().map(|field| field.name().to_owned()).collect();
    let mut wanted: Vec<usize> = positions(file, columns, &names)?;
    for &at in &wanted {
        if !holds_texts(&fields[at]) {
            let why = format!("column {:?} holds no texts", names[at]);
            return Err(FileError::Broken { file: file.to_owned(), why });
        }
    }
    wanted.sort_unstable();
    wanted.dedup();
    let kept: Vec<Arc<Type>> = wanted.into_iter().map(|at| Arc::clone(&fields[at])).collect();
    let projection = Type::group_type_builder(schema.name()).with_fields(kept).build();
    projection.map_err(|error| FileError::Broken { file: file.to_owned(), why: error.to_string() })
}

/// Whether a column holds texts: one per row, or a list.
fn holds_texts(field: &Type) -> bool {
    match field {
        Type::PrimitiveType { physical_type, .. } => *physical_type == PhysicalType::BYTE_ARRAY,
        Type::GroupType { fields, .. } => fields.len() == 1 && holds_texts(&fields[0]),
    }
}

fn cells(record: Record, columns: &[String]) -> Result<Vec<Cell>, String> {
    let fields = record.into_columns();
    let cell = |column: &String| {
        let field = fields.iter().find(|(name, _)| name == column);
        let (_, field) = field.ok_or_else(|| format!("no value of {column:?}"))?;
        match field {
            Field::ListInternal(list) => list
                .elements()
                .iter()
                .map(|field| text(field, column))
                .collect::<Result<_, _>>()
                .map(Cell::List),
            field => text(field, column).map(Cell::Text),
        }
    };
    columns.iter().map(cell).collect()
}

fn text(field: &Field, column: &str) -> Result<String, String> {
    match field {
        Field::Bytes(bytes) => match bytes.as_utf8() {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(format!("the value of {column:?} is not UTF-8")),
        },
        Field::Null => Err(format!("the value of {column:?} is null, expected a text")),
        _ => Err(format!("the value of {column:?} is no text")),
    }
}
