//! What goes to stdout.

use std::io::Write;

use serde::Serialize;

/// Prints `document` as indented JSON and a line end.
///
/// # Errors
///
/// If stdout cannot be written.
pub(crate) fn json<T: Serialize>(document: &T) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut stdout, document).map_err(std::io::Error::from)?;
    stdout.write_all(b"\n")?;
    Ok(())
}

/// Prints `text` as it is, its colours only where stdout shows them.
///
/// # Errors
///
/// If stdout cannot be written.
pub(crate) fn text(text: &str) -> anyhow::Result<()> {
    anstream::stdout().lock().write_all(text.as_bytes())?;
    Ok(())
}
