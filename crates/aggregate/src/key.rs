//! Which variables are like each other: keys `Group/Variable_Datatype_Class` (mcrEngine, section III.A).
//!
//! Relies on `stdchk-formats` and `regex-lite`. The idea: names of real codes carry numbers of grids, iterations, chunks
//! and layers that differ between ranks and dumps, so by default every run of digits counts as the same.

use regex_lite::Regex;
use stdchk_formats::Variable;

use crate::error::{AggregateError, Result};

/// How names are compared.
#[derive(Clone, Debug, Default)]
pub enum KeyRule {
    /// Group and name with every run of digits read as `#`.
    #[default]
    Numbers,
    /// Nothing but type and class: all variables of a rank next to each other, for coders that see one in the other.
    Type,
    /// What the pattern's groups match in `group/name`, joined, or all that it matches when it has none; names that it
    /// doesn't match are compared exactly.
    Pattern(Regex),
}

impl KeyRule {
    /// The rule for a regular expression.
    ///
    /// # Errors
    /// When it is none.
    pub fn pattern(expression: &str) -> Result<Self> {
        let invalid =
            |error| AggregateError::Invalid(format!("'{expression}' is no regular expression: {error}"));
        Regex::new(expression).map(Self::Pattern).map_err(invalid)
    }

    /// The key of a variable.
    #[must_use]
    pub fn key(&self, variable: &Variable) -> String {
        format!("{}_{}_{}", self.name(variable), variable.data_type, variable.class())
    }

    fn name(&self, variable: &Variable) -> String {
        match self {
            Self::Numbers => without_numbers(&variable.path()),
            Self::Type => String::new(),
            Self::Pattern(pattern) => captured(pattern, &variable.path()).unwrap_or_else(|| variable.path()),
        }
    }
}

/// The groups that took part in the match, or the whole match where the pattern has none.
fn captured(pattern: &Regex, path: &str) -> Option<String> {
    let captures = pattern.captures(path)?;
    let groups: Vec<&str> = captures.iter().skip(1).flatten().map(|found| found.as_str()).collect();
    if groups.is_empty() {
        captures.get(0).map(|whole| whole.as_str().to_owned())
    } else {
        Some(groups.join("/"))
    }
}

/// Every run of digits as `#`.
pub(crate) fn without_numbers(path: &str) -> String {
    let mut plain = String::with_capacity(path.len());
    for character in path.chars() {
        match character {
            '0'..='9' if plain.ends_with('#') => {}
            '0'..='9' => plain.push('#'),
            _ => plain.push(character),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use stdchk_formats::{ByteOrder, DataType, Extent, Kind, Storage};

    use super::*;

    fn variable(group: &str, name: &str, order: ByteOrder) -> Variable {
        Variable {
            group: group.to_owned(),
            name: name.to_owned(),
            data_type: DataType::new(Kind::Float, 4, order),
            shape: vec![10],
            storage: Storage::Plain,
            extents: vec![Extent { offset: 0, length: 40 }],
        }
    }

    #[test]
    fn the_papers_example_has_the_papers_key() {
        let exact = KeyRule::pattern(".*").unwrap();
        let key = exact.key(&variable("ToyGrp", "Temperature", ByteOrder::Little));
        assert_eq!(key, "ToyGrp/Temperature_F32LE_Array1D");
    }

    #[test]
    fn numbers_of_grids_iterations_and_chunks_do_not_separate_variables() {
        let key = |group, name| KeyRule::Numbers.key(&variable(group, name, ByteOrder::Little));
        assert_eq!(key("Grid00000001", "Density"), key("Grid00000252", "Density"));
        assert_eq!(key("phi it=40", "c=3"), key("phi it=100", "c=12"));
        assert_ne!(key("Grid00000001", "Density"), key("Grid00000001", "Energy"));
    }

    #[test]
    fn byte_order_separates_variables() {
        let key = |order| KeyRule::Numbers.key(&variable("a", "b", order));
        assert_ne!(key(ByteOrder::Little), key(ByteOrder::Big));
    }

    #[test]
    fn a_pattern_keys_by_its_groups() {
        let rule = KeyRule::Pattern(Regex::new(r"::(\w+) timelevel (\d+)").unwrap());
        let key =
            rule.key(&variable("WAVETOY::phi timelevel 0 at iteration 80", "chunk0", ByteOrder::Little));
        assert_eq!(key, "phi/0_F32LE_Array1D");
    }
}
