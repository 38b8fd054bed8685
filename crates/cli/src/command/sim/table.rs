//! `sim` for people.

use std::fmt::Write;

use chronovisor_sim::scenario::Scenario;

use super::document::Document;

/// A scenario whose rows can be shown.
pub(super) trait Render: Scenario {
    /// The tables, published figures included.
    fn tables(document: &Document<Self>) -> String;
}

/// The whole answer as text.
pub(super) fn render<S: Render>(document: &Document<S>) -> String {
    let mut text = S::tables(document);
    let (seed, runs, events) = (document.seed, document.runs, document.events);
    // Writing into a String cannot fail.
    let _ = write!(text, "\nseed {seed}, runs {runs}, {events} events");
    if let (Some(rate), Some(seconds)) = (document.events_per_second, document.seconds) {
        let _ = write!(text, " in {seconds:.2} s ({:.1} million/s)", rate / 1e6);
    }
    text.push('\n');
    text
}
