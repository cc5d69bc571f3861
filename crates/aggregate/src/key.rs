//! Which variables are like each other: keys `Group/Variable_Datatype_Class` (mcrEngine, section III.A).
//!
//! Relies on `stdchk-formats` and `regex-lite`. The idea: names of real codes carry numbers of grids, iterations, chunks
//! and layers that differ between ranks and dumps, so by default every run of digits counts as the same.

use std::fmt::Write as _;

use regex_lite::Regex;
use stdchk_formats::Variable;

use crate::error::{AggregateError, Result};

/// How names are compared.
#[derive(Clone, Debug, Default)]
pub enum KeyRule {
    /// Group and name with every run of digits read as `#`.
    #[default]
    Numbers,
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

    /// The key of a variable, in place of what `key` holds: with many variables the memory for it is had once.
    pub(crate) fn write(&self, variable: &Variable, key: &mut String) {
        key.clear();
        match self {
            Self::Numbers => {
                push_without_numbers(key, &variable.group);
                key.push_str(if variable.group.is_empty() { "" } else { "/" });
                push_without_numbers(key, &variable.name);
            }
            Self::Pattern(pattern) => {
                let path = variable.path();
                match captured(pattern, &path) {
                    Some(groups) => key.push_str(&groups),
                    // What the pattern doesn't fit is alike by its whole name.
                    None => key.push_str(&path),
                }
            }
        }
        // Writing to a string never fails.
        let _ = match variable.shape.len() {
            0 => write!(key, "_{}_Atomic", variable.data_type),
            dimensions => write!(key, "_{}_Array{dimensions}D", variable.data_type),
        };
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
    push_without_numbers(&mut plain, path);
    plain
}

fn push_without_numbers(plain: &mut String, path: &str) {
    let is_digit = |character: char| character.is_ascii_digit();
    let mut rest = path;
    while let Some((before, from)) = rest.find(is_digit).and_then(|at| rest.split_at_checked(at)) {
        plain.push_str(before);
        plain.push('#');
        rest = from.trim_start_matches(is_digit);
    }
    plain.push_str(rest);
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

    fn key(rule: &KeyRule, variable: &Variable) -> String {
        let mut key = "what was there before".to_owned();
        rule.write(variable, &mut key);
        key
    }

    #[test]
    fn the_papers_example_has_the_papers_key() {
        let exact = KeyRule::pattern(".*").unwrap();
        let key = key(&exact, &variable("ToyGrp", "Temperature", ByteOrder::Little));
        assert_eq!(key, "ToyGrp/Temperature_F32LE_Array1D");
    }

    #[test]
    fn numbers_of_grids_iterations_and_chunks_do_not_separate_variables() {
        let key = |group, name| key(&KeyRule::Numbers, &variable(group, name, ByteOrder::Little));
        assert_eq!(key("Grid00000001", "Density"), key("Grid00000252", "Density"));
        assert_eq!(key("phi it=40", "c=3"), key("phi it=100", "c=12"));
        assert_ne!(key("Grid00000001", "Density"), key("Grid00000001", "Energy"));
        assert_eq!(key("", "1layer22"), "#layer#_F32LE_Array1D");
    }

    #[test]
    fn byte_order_separates_variables() {
        let key = |order| key(&KeyRule::Numbers, &variable("a", "b", order));
        assert_ne!(key(ByteOrder::Little), key(ByteOrder::Big));
    }

    #[test]
    fn a_pattern_keys_by_its_groups() {
        let rule = KeyRule::Pattern(Regex::new(r"::(\w+) timelevel (\d+)").unwrap());
        let phi = variable("WAVETOY::phi timelevel 0 at iteration 80", "chunk0", ByteOrder::Little);
        assert_eq!(key(&rule, &phi), "phi/0_F32LE_Array1D");
    }
}
