//! One file of images: found by name, checked before use, written aside.
//!
//! ```text
//! 0     [`Header`]
//! 4096  images, each at a multiple of 4096
//! ..    [`Index`], as JSON
//! ```

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    ops::Range,
    path::Path,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;
use turbo_graph::kernels::MappedFile;
use twox_hash::XxHash3_128;

use super::ModelKey;
use crate::error::one_line;

/// Identifies the format and its version.
const MAGIC: [u8; 8] = *b"turbopk1";
/// The beginning of [`MAGIC`] in every version.
const MAGIC_OF_ALL: &[u8] = b"turbopk";
/// Prefix of the names of files while they are written.
const UNFINISHED: &str = ".packing-";
/// Ending of the names of finished files.
pub(super) const FINISHED: &str = ".packed";
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Age at which an unfinished file counts as given up: its writer was killed.
const GIVEN_UP: Duration = DAY;
/// Age at which an unused file is removed: its model has changed, or is not used any more.
const FORGOTTEN: Duration = DAY.saturating_mul(30);
/// Images begin at multiples of this, the size of a page.
const ALIGNMENT: u64 = 4096;

#[derive(Serialize, Deserialize)]
struct Index {
    /// Name of the model when the file was written, for inspection by hand.
    name: String,
    /// The [`ModelKey`] of the weights that were packed.
    model: String,
    images: Images,
}

/// By the name of the weight, then by packing.
type Images = BTreeMap<String, BTreeMap<String, Stored>>;

/// Where an image is, and its digest.
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
    /// Opens the file at `path`, which should hold images of the model `key`, and sets its modification time to now,
    /// which shows others that it is in use. `None` if there is no file.
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
        // fails if another user owns the file, which can be read all the same
        drop(File::options().write(true).open(path).and_then(|file| file.set_modified(SystemTime::now())));
        Ok(Some(Self { map, images: index.images }))
    }

    /// The image `name` in this packing; `None` if the file has none.
    ///
    /// # Errors
    /// If it is damaged, in one line.
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

/// Reads the index of a file that should have one.
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

/// Detects damage only: it is no secret how to make another image with the same digest.
pub(super) fn digest(image: &[u8]) -> String {
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

/// A file of images that is being written, in the folder where it will be.
pub(super) struct NewFile {
    file: NamedTempFile,
    /// Where the next image may begin, before alignment.
    end: u64,
    images: Images,
}

impl NewFile {
    /// Creates an empty file, to be renamed to `path`. If it is dropped before that, it leaves nothing behind.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let dir = path.parent().expect("the file lies in the folder of the cache");
        remove_unused(dir)?;
        let mut builder = tempfile::Builder::new();
        // weights are no secret: the next start may be another user's, if the umask lets that user read them
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let file = builder.prefix(UNFINISHED).tempfile_in(dir)?;
        Ok(Self { file, end: Header::BYTES as u64, images: BTreeMap::new() })
    }

    /// Writes one image. The caller passes its [`digest`], which takes as long to compute as the image takes to write.
    pub(super) fn add(&mut self, name: &str, packing: &str, image: &[u8], digest: String) -> io::Result<()> {
        let first_byte = self.end.next_multiple_of(ALIGNMENT);
        self.file.seek(SeekFrom::Start(first_byte))?;
        self.file.write_all(image)?;
        let bytes = image.len() as u64;
        self.end = first_byte + bytes;
        let stored = Stored { first_byte, bytes, digest };
        self.images.entry(name.to_owned()).or_default().insert(packing.to_owned(), stored);
        Ok(())
    }

    /// The packings of the weight `name` in the file, if any.
    pub(super) fn packings(&self, name: &str) -> Option<impl Iterator<Item = &str>> {
        Some(self.images.get(name)?.keys().map(String::as_str))
    }

    /// Writes the index and renames the file. The system may write it to the disk when it likes: what a power failure
    /// tears has a wrong digest.
    pub(super) fn finish(mut self, path: &Path, name: String, key: ModelKey) -> io::Result<()> {
        let index = serde_json::to_vec(&Index { name, model: key.to_string(), images: self.images })?;
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

/// Removes files whose writing was given up, and those that were not used for a long time.
fn remove_unused(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        let age = || entry.metadata().and_then(|metadata| metadata.modified()).ok()?.elapsed().ok();
        let is_unused = (name.starts_with(UNFINISHED) && age() > Some(GIVEN_UP))
            || (name.ends_with(FINISHED) && age() > Some(FORGOTTEN) && is_ours(&path));
        if is_unused {
            // another process may have removed it
            drop(fs::remove_file(path));
        }
    }
    Ok(())
}

/// Whether the file at `path` holds images, in any version of the format.
fn is_ours(path: &Path) -> bool {
    let mut begins = [0; MAGIC_OF_ALL.len()];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut begins));
    read.is_ok() && begins == MAGIC_OF_ALL
}
