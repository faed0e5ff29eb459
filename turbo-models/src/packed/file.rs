//! One file of images: found by name, checked before it is believed, written aside.
//!
//! ```text
//! 0     [`Header`]
//! 4096  images, each at a multiple of 4096
//! ..    [`Index`], as JSON
//! ```

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Seek, SeekFrom, Write},
    ops::Range,
    path::Path,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;
use turbo_graph::kernels::MappedFile;
use twox_hash::XxHash3_128;

use super::ModelKey;
use crate::error::one_line;

/// The format and its version.
const MAGIC: [u8; 8] = *b"turbopk1";
/// What files are called while they are written.
const UNFINISHED: &str = ".packing-";
/// Files that were not finished by then never will be: whoever wrote them was killed.
const GIVEN_UP: Duration = Duration::from_secs(24 * 3600);
/// Images begin at multiples of it: those of a page.
const ALIGNMENT: u64 = 4096;

#[derive(Serialize, Deserialize)]
struct Index {
    /// The [`ModelKey`] of the weights that were packed.
    model: String,
    images: Images,
}

/// By the names of weights, and there by packing.
type Images = BTreeMap<String, BTreeMap<String, Stored>>;

/// Where an image is, and what it is.
#[derive(Serialize, Deserialize)]
struct Stored {
    first_byte: u64,
    bytes: u64,
    digest: String,
}

/// A file of images, mapped.
pub(super) struct PackedFile {
    map: MappedFile,
    images: Images,
}

impl PackedFile {
    /// Opens the file at `path`, which should hold images of the model `key`; `None` where there is no file.
    ///
    /// # Errors
    /// Why it cannot be used, in one line.
    pub(super) fn open(path: &Path, key: ModelKey) -> Result<Option<Self>, String> {
        let map = match MappedFile::open(path) {
            Ok(map) => map,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(one_line(error)),
        };
        let index = index(&map)?;
        if index.model != key.to_string() {
            return Err("it holds weights of another model".to_owned());
        }
        Ok(Some(Self { map, images: index.images }))
    }

    /// The image `name` in this packing; `None` where the file has none.
    ///
    /// # Errors
    /// That it is damaged, in one line.
    pub(super) fn image(&self, name: &str, packing: &str) -> Result<Option<&[u8]>, String> {
        let Some(stored) = self.images.get(name).and_then(|packings| packings.get(packing)) else {
            return Ok(None);
        };
        let image = place(stored.first_byte, stored.bytes).and_then(|place| self.map.get(place));
        match image {
            Some(image) if digest(image) == stored.digest => Ok(Some(image)),
            _ => Err(format!("{} is damaged", one_line(name))),
        }
    }

    /// Names and packings of its images.
    pub(super) fn names(&self) -> impl Iterator<Item = (&str, &str)> {
        self.images
            .iter()
            .flat_map(|(name, packings)| packings.keys().map(|packing| (name.as_str(), packing.as_str())))
    }
}

/// The index of a file that should have one.
fn index(file: &[u8]) -> Result<Index, String> {
    let header =
        file.first_chunk().and_then(Header::read).ok_or("it holds no packed weights of this version")?;
    let index = place(header.first_byte, header.bytes).and_then(|place| file.get(place));
    match index {
        Some(index) if XxHash3_128::oneshot(index) == header.digest => {
            serde_json::from_slice(index).map_err(one_line)
        }
        _ => Err("its index is damaged".to_owned()),
    }
}

fn place(first_byte: u64, bytes: u64) -> Option<Range<usize>> {
    let end = first_byte.checked_add(bytes)?;
    Some(first_byte.try_into().ok()?..end.try_into().ok()?)
}

/// Tells damage: it is no secret how to make another image of the same digest.
fn digest(image: &[u8]) -> String {
    format!("{:032x}", XxHash3_128::oneshot(image))
}

/// Where the index is, and its digest.
struct Header {
    first_byte: u64,
    bytes: u64,
    digest: u128,
}

impl Header {
    const BYTES: usize = 8 + 8 + 8 + 16;

    fn read(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        let (first_byte, rest) = rest.split_first_chunk()?;
        let (bytes, rest) = rest.split_first_chunk()?;
        let [first_byte, bytes] = [first_byte, bytes].map(|number| u64::from_le_bytes(*number));
        Some(Self { first_byte, bytes, digest: u128::from_le_bytes(*rest.first_chunk()?) })
    }

    fn write(&self) -> Vec<u8> {
        let numbers = [self.first_byte, self.bytes].map(u64::to_le_bytes);
        [&MAGIC[..], numbers.as_flattened(), &self.digest.to_le_bytes()].concat()
    }
}

/// A file of images that is being written, beside the place where it will be.
pub(super) struct NewFile {
    file: NamedTempFile,
    /// Where the next image may begin, but for alignment.
    end: u64,
    images: Images,
}

impl NewFile {
    /// An empty one, to be renamed to `path`. Dropped before, it leaves nothing.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let dir = path.parent().expect("the file lies in the folder of the cache");
        remove_given_up(dir)?;
        let file = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(dir)?;
        Ok(Self { file, end: Header::BYTES as u64, images: BTreeMap::new() })
    }

    /// Writes one image.
    pub(super) fn add(&mut self, name: &str, packing: &str, image: &[u8]) -> io::Result<()> {
        let first_byte = self.end.next_multiple_of(ALIGNMENT);
        self.file.seek(SeekFrom::Start(first_byte))?;
        self.file.write_all(image)?;
        let bytes = image.len() as u64;
        self.end = first_byte + bytes;
        let stored = Stored { first_byte, bytes, digest: digest(image) };
        self.images.entry(name.to_owned()).or_default().insert(packing.to_owned(), stored);
        Ok(())
    }

    /// The packings that it has of the weight `name`, if any.
    pub(super) fn packings(&self, name: &str) -> Option<impl Iterator<Item = &str>> {
        Some(self.images.get(name)?.keys().map(String::as_str))
    }

    /// Gives it an index and its name. The system may write it to the disk when it likes: what a power failure tears
    /// has a wrong digest.
    pub(super) fn finish(mut self, path: &Path, key: ModelKey) -> io::Result<()> {
        let index = serde_json::to_vec(&Index { model: key.to_string(), images: self.images })?;
        self.file.seek(SeekFrom::Start(self.end))?;
        self.file.write_all(&index)?;
        let digest = XxHash3_128::oneshot(&index);
        let header = Header { first_byte: self.end, bytes: index.len() as u64, digest };
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&header.write())?;
        self.file.persist(path).map_err(|error| error.error)?;
        Ok(())
    }
}

fn remove_given_up(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let is_old = || entry.metadata().and_then(|metadata| metadata.modified()).ok()?.elapsed().ok();
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED) && is_old() > Some(GIVEN_UP) {
            // somebody else may have been faster
            drop(fs::remove_file(entry.path()));
        }
    }
    Ok(())
}
