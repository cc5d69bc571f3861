//! Labels: what the owner of a benefactor says of where it stands, such as `rack=3` and `site=b`.
//!
//! Any names can be given. Some have a meaning for who places copies: benefactors with the same [`rack`](LEVELS) share fate more likely
//! than others, and [`DEDICATED`] ones are servers that stay.

use crate::error::{ErrorCode, Failure};
use crate::limits::{LABEL_BYTES_MAX, LABELS_MAX};

/// Names that say what benefactors share, finest first: those of one row are the same to who places copies.
pub const LEVELS: [&[&str]; 3] = [&["rack", "node"], &["row", "room", "zone"], &["site", "region"]];

/// Of a benefactor for `placement=dedicated`; its value is `yes`.
pub const DEDICATED: &str = "dedicated";

/// Names with their values.
pub type Labels = Vec<(String, String)>;

/// What a benefactor shares with others on a level of [`LEVELS`].
pub fn on_level(labels: &[(String, String)], level: usize) -> Option<&str> {
    let names = LEVELS.get(level)?;
    let of = |name: &&str| labels.iter().find(|(known, _)| known == name);
    names.iter().find_map(of).map(|(_, value)| value.as_str())
}

/// Whether a benefactor is a server that stays.
pub fn is_dedicated(labels: &[(String, String)]) -> bool {
    labels.iter().any(|(name, value)| name == DEDICATED && value == "yes")
}

/// Reads `NAME=VALUE`.
///
/// # Errors
/// It is something else; see [`check`].
pub fn parse(text: &str) -> Result<(String, String), Failure> {
    let (name, value) = text.split_once('=').ok_or_else(|| refuse(text, "give NAME=VALUE"))?;
    let label = (name.to_owned(), value.to_owned());
    check(std::slice::from_ref(&label))?;
    Ok(label)
}

/// Refuses labels that can't be kept: too many or too long ones, one name twice, other characters than letters, digits, `.`, `-` and `_`.
///
/// # Errors
/// `Invalid`, with what is wrong.
pub fn check(labels: &[(String, String)]) -> Result<(), Failure> {
    let is_word = |text: &str| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        !text.is_empty() && text.len() <= LABEL_BYTES_MAX && text.bytes().all(fits)
    };
    if labels.len() > LABELS_MAX {
        let message = format!("a benefactor has at most {LABELS_MAX} labels");
        return Err(Failure::new(ErrorCode::Invalid, message));
    }
    for (place, (name, value)) in labels.iter().enumerate() {
        let shown = format!("{name}={value}");
        if !is_word(name) || !is_word(value) {
            let why = format!(
                "names and values have letters, digits, `.`, `-` and `_`, from 1 to {LABEL_BYTES_MAX} of them"
            );
            return Err(refuse(&shown, &why));
        }
        if labels.iter().take(place).any(|(other, _)| other == name) {
            return Err(refuse(&shown, "give each name once"));
        }
    }
    Ok(())
}

fn refuse(text: &str, why: &str) -> Failure {
    let shown: String = text.chars().take(80).collect();
    Failure::new(ErrorCode::Invalid, format!("`{shown}` is no label")).then(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(texts: &[&str]) -> Labels {
        texts.iter().map(|text| parse(text).unwrap()).collect()
    }

    #[test]
    fn labels_are_words_each_named_once() {
        let good = labels(&["rack=3", "zone=eu-1.b", "owner=j_d"]);
        check(&good).unwrap();
        assert_eq!([0, 1, 2].map(|level| on_level(&good, level)), [Some("3"), Some("eu-1.b"), None]);
        assert!(!is_dedicated(&good) && is_dedicated(&labels(&["dedicated=yes"])));
        for bad in ["rack", "=3", "rack=", "rack=a b", "rack=ä", &format!("rack={}", "3".repeat(65))] {
            assert_eq!(parse(bad).unwrap_err().code, ErrorCode::Invalid, "{bad}");
        }
        assert!(check(&labels(&["rack=3", "rack=4"])).is_err());
        let many: Labels = (0..=LABELS_MAX).map(|number| (format!("l{number}"), "1".to_owned())).collect();
        assert!(check(&many).is_err());
    }
}
