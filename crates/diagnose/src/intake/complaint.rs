//! What could not be read: one line each, the first few in full, the rest counted.

/// Complaints kept in full.
const KEPT: usize = 20;

/// A bounded list of complaints.
#[derive(Clone, Debug, Default)]
pub(crate) struct Complaints {
    lines: Vec<String>,
    more: u64,
}

impl Complaints {
    /// Takes one in.
    pub(crate) fn add(&mut self, line: String) {
        if self.lines.len() < KEPT {
            self.lines.push(line);
        } else {
            self.more += 1;
        }
    }

    /// Takes in many.
    pub(crate) fn extend(&mut self, lines: impl IntoIterator<Item = String>) {
        for line in lines {
            self.add(line);
        }
    }

    /// The complaints as lines.
    pub(crate) fn into_lines(mut self) -> Vec<String> {
        if self.more > 0 {
            self.lines
                .push(format!("and {} more of the same kind", self.more));
        }
        self.lines
    }
}
