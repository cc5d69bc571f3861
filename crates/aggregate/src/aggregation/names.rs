//! The names of containers in a sink, which are all that is known of them without opening them.
//!
//! Relies on nothing. The idea: `step-120.2of4.pack` is the second of the four containers of timestep 120; a base whose own
//! set was packed anew is called `base-IDENTITY.pack`; a draft is hidden behind a dot.

use stdchk_model::Timestep;

/// The name of a container of a set.
pub(super) fn name_of(timestep: Timestep, number: usize, of: usize) -> String {
    format!("step-{timestep}.{number}of{of}.pack")
}

/// Timestep, number and count that a name says.
pub(super) fn parts_of(name: &str) -> Option<(Timestep, usize, usize)> {
    let (timestep, rest) = name.strip_prefix("step-")?.strip_suffix(".pack")?.rsplit_once('.')?;
    let (number, of) = rest.split_once("of")?;
    let parts = (timestep.parse().ok()?, number.parse().ok()?, of.parse().ok()?);
    let (timestep, number, of) = parts;
    (name == name_of(timestep, number, of) && (1..=of).contains(&number)).then_some(parts)
}

pub(super) fn kept_base_name(identity: [u8; 16]) -> String {
    let identity: String = identity.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("base-{identity}.pack")
}

pub(super) fn is_kept_base(name: &str) -> bool {
    let identity = name.strip_prefix("base-").and_then(|rest| rest.strip_suffix(".pack"));
    identity
        .is_some_and(|identity| identity.len() == 32 && identity.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Whether a container is kept under such a name.
pub(super) fn is_container(name: &str) -> bool {
    parts_of(name).is_some() || is_kept_base(name)
}

/// What a killed aggregator leaves: a container that was not verified, or one that was not written to its end.
pub(super) fn is_draft(name: &str) -> bool {
    let Some(hidden) = name.strip_prefix('.') else { return false };
    parts_of(hidden).is_some() || (hidden.starts_with(".step-") && hidden.ends_with(".stdchk-part"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_of_which_set_a_container_is() {
        assert_eq!(parts_of("step-120.2of4.pack"), Some((120.into(), 2, 4)));
        for timestep in ["0012", "0.005", "1e-05", "-180", "2016-10-13_00:00:00.5"] {
            let (read, number, of) = parts_of(&name_of(timestep.parse().unwrap(), 2, 4)).unwrap();
            assert_eq!((read.name(), number, of), (timestep, 2, 4));
        }
        for other in [
            "step-1.0of2.pack",
            "step-1.3of2.pack",
            "step-x.1of2.pack",
            "step-1.01of2.pack",
            "x.pack",
            "step-1.1of2",
        ] {
            assert_eq!(parts_of(other), None, "{other}");
        }
        assert!(is_draft(".step-1.1of2.pack"));
        assert!(is_draft("..step-1.1of2.packAbC.stdchk-part"));
        assert!(!is_draft("step-1.1of2.pack"));
        assert!(!is_draft(".aggregate.lock"));
        assert!(is_kept_base(&kept_base_name([0xa5; 16])));
        assert!(!is_kept_base("base-line.pack"));
    }
}
