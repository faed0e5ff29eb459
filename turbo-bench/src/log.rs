//! What a process wrote to its standard error, kept to explain why it ended.

use std::{fs, process::Stdio};

use anyhow::{Context, Result};
use tempfile::NamedTempFile;

/// A temporary file that a process writes to.
pub struct Log(NamedTempFile);

impl Log {
    /// Makes an empty log.
    ///
    /// # Errors
    /// When no temporary file can be made.
    pub fn new() -> Result<Self> {
        Ok(Self(NamedTempFile::new().context("cannot make a temporary file")?))
    }

    /// A handle for the process to write to.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn sink(&self) -> Result<Stdio> {
        Ok(self.0.reopen()?.into())
    }

    /// All that was written so far, or why it cannot be read.
    pub fn text(&self) -> String {
        match fs::read(self.0.path()) {
            Ok(text) => String::from_utf8_lossy(&text).into_owned(),
            Err(error) => error.to_string(),
        }
    }

    /// The last lines of [`Log::text`].
    pub fn last_words(&self) -> String {
        const LINES: usize = 12;
        let text = self.text();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }
}
