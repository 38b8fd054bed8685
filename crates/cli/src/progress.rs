//! A progress bar, where somebody looks.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

const STEPS: f64 = 1000.0;

/// A bar on stderr if that is a terminal, else nothing.
pub(crate) struct Progress(Option<ProgressBar>);

impl Progress {
    pub(crate) fn start() -> Self {
        Self(std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{bar:30} {elapsed} {msg}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(1000).with_style(style)
        }))
    }

    /// How far it is: 0 to 1.
    pub(crate) fn at(&self, message: &str, share: f64) {
        if let Some(bar) = &self.0 {
            bar.set_message(message.to_owned());
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "0 to 1000, a picture for the eye"
            )]
            bar.set_position((share.clamp(0.0, 1.0) * STEPS) as u64);
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
