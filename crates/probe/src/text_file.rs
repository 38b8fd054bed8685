//! Small files of the kernel, read with a limit and an error that says what to do.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Largest file that is read whole. `/proc/interrupts` of 8192 CPUs stays below it.
const LIMIT: u64 = 16 << 20;

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The system refused.
    #[error("{}: {source}{}", path.display(), hint(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is larger than anything that belongs there.
    #[error("{}: larger than {LIMIT} bytes: not read", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => " (try as root)",
        _ => "",
    }
}

/// The file's text; bytes that are no UTF-8 are replaced.
///
/// # Errors
///
/// [`TextError`].
pub fn whole(path: impl AsRef<Path>) -> Result<String, TextError> {
    let path = path.as_ref();
    let io_error = |source| TextError::Io {
        path: path.to_owned(),
        source,
    };
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(LIMIT + 1).read_to_end(&mut bytes))
        .map_err(io_error)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > LIMIT {
        return Err(TextError::TooLarge {
            path: path.to_owned(),
        });
    }
    Ok(match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    })
}

/// The file's first line without blanks around it.
///
/// # Errors
///
/// [`TextError`].
pub fn first_line(path: impl AsRef<Path>) -> Result<String, TextError> {
    whole(path).map(|text| text.lines().next().unwrap_or("").trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_named() {
        let error = whole("/nonexistent/clock").unwrap_err().to_string();
        assert!(error.starts_with("/nonexistent/clock: "), "{error}");
    }

    #[test]
    fn an_endless_file_is_refused() {
        let error = whole("/dev/zero").unwrap_err();
        assert!(matches!(error, TextError::TooLarge { .. }), "{error}");
    }
}
