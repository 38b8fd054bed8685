//! A progress bar over units, where somebody looks.

use std::io::IsTerminal;
use std::ops::Range;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar on stderr if that is a terminal, else nothing.
pub(super) struct Progress(Option<ProgressBar>);

impl Progress {
    pub(super) fn start(units: Range<u64>) -> Self {
        Self(std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed}, {eta} left")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(units.end - units.start).with_style(style)
        }))
    }

    pub(super) fn at(&self, done: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(done);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
