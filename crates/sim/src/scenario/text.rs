//! Reading a scenario's TOML, and saying what is wrong with it.

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Why a text is no scenario.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// The text is not TOML, or not of this scenario.
    #[error("line {line}: {message}{hint}")]
    Text {
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        message: String,
        /// What was probably meant, or nothing.
        hint: String,
    },
    /// A parameter is impossible.
    #[error("{key}: {reason}")]
    Impossible {
        /// The parameter.
        key: String,
        /// Why, and what would be possible.
        reason: String,
    },
}

impl ScenarioError {
    /// The parameter `key` is impossible because of `reason`.
    pub(crate) fn impossible(key: &str, reason: impl ToString) -> Self {
        Self::Impossible {
            key: key.to_owned(),
            reason: reason.to_string(),
        }
    }
}

#[derive(Deserialize)]
struct Kind {
    scenario: String,
}

/// The kind of scenario that `text` names in its key `scenario`.
///
/// # Errors
///
/// [`ScenarioError::Text`] if the text is no TOML or the key is missing.
pub fn kind_of(text: &str) -> Result<String, ScenarioError> {
    parse::<Kind>(text).map(|kind| kind.scenario)
}

/// The parameters in `text`.
///
/// # Errors
///
/// [`ScenarioError::Text`] with the line, and the nearest right key for a wrong one.
pub fn parse<P: DeserializeOwned>(text: &str) -> Result<P, ScenarioError> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let at = error.span().map_or(0, |span| span.start);
        let line = text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1;
        let message = error.message().to_owned();
        let hint = hint(&message);
        ScenarioError::Text {
            line,
            message,
            hint,
        }
    })
}

/// Which key or name was probably meant, from either form in which the parser tells the wrong and the right ones:
/// "unknown field `x`, expected one of `a`, `b`" and "unexpected keys in table: x, available keys: a, b".
fn hint(message: &str) -> String {
    let meant = if let Some(keys) = message.strip_prefix("unexpected keys in table: ") {
        keys.split_once(", available keys: ")
            .and_then(|(wrong, right)| nearest(wrong.split(", ").next()?, right.split(", ")))
    } else if message.starts_with("unknown ") {
        let mut quoted = message.split('`').skip(1).step_by(2);
        quoted.next().and_then(|wrong| nearest(wrong, quoted))
    } else {
        None
    };
    meant
        .map(|right| format!(" (did you mean `{right}`?)"))
        .unwrap_or_default()
}

/// The candidate with the fewest edits to `word`, if it takes no more than half of the word's length.
pub(super) fn nearest<'a>(
    word: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    candidates
        .map(|candidate| (edits(word, candidate), candidate))
        .min()
        .filter(|(edits, candidate)| *edits <= word.len().max(candidate.len()).div_ceil(2))
        .map(|(_, candidate)| candidate)
}

/// The number of letters to insert, delete or replace (Levenshtein's distance).
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Example {
        seed: u64,
        period_ns: u64,
    }

    #[test]
    fn a_wrong_key_names_its_line_and_the_nearest_right_key() {
        let error = parse::<Example>("seed = 1\n\nperiod_us = 3\n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "line 3: unknown field `period_us`, expected `seed` or `period_ns` (did you mean `period_ns`?)"
        );
        let error = parse::<Example>("sede = 1\n").unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("line 1: unknown field `sede`"),
            "{error}"
        );
        assert!(
            error.to_string().ends_with("(did you mean `seed`?)"),
            "{error}"
        );
    }

    #[test]
    fn what_is_not_toml_names_its_line() {
        let error = parse::<Example>("seed = 1\nperiod_ns = \n").unwrap_err();
        assert!(
            matches!(error, ScenarioError::Text { line: 2, .. }),
            "{error}"
        );
        let error = kind_of("seed = 1\n").unwrap_err();
        assert!(error.to_string().contains("scenario"), "{error}");
    }

    #[test]
    fn nothing_is_suggested_for_a_word_that_is_like_none() {
        assert_eq!(nearest("xyzzy", ["seed", "runs"].into_iter()), None);
        assert_eq!(
            nearest("migratoin", ["migration", "smp-boot"].into_iter()),
            Some("migration")
        );
        assert_eq!(edits("kitten", "sitting"), 3);
    }
}
