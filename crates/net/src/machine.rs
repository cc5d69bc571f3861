//! Which machine this is, such that clients and benefactors on it say the same.
//!
//! `STDCHK_HOST` decides, where it is set: in containers that come and go under new names, a job knows better. Otherwise it is the name of the
//! machine and its /etc/machine-id, where there is one: containers of one image share that, and differ in their names.

use stdchk_model::MachineId;
use stdchk_model::limits::NAME_BYTES_MAX;

/// The variable that names this machine.
pub const VARIABLE: &str = "STDCHK_HOST";

/// This machine.
pub fn machine() -> MachineId {
    match std::env::var(VARIABLE).ok().filter(|name| !name.is_empty()) {
        Some(name) => of("named", name.as_bytes()),
        None => {
            let mut said = rustix::system::uname().nodename().to_bytes().to_vec();
            // Without one, the name has to do.
            said.extend(std::fs::read("/etc/machine-id").unwrap_or_default());
            of("found", &said)
        }
    }
}

/// What this machine calls itself, for people: at most as long as a name may be.
pub fn host() -> String {
    let named = std::env::var(VARIABLE).ok().filter(|name| !name.is_empty());
    let mut host = named.unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
    host.truncate(host.floor_char_boundary(NAME_BYTES_MAX));
    host
}

fn of(how: &str, said: &[u8]) -> MachineId {
    let hash = blake3::derive_key("stdchk machine 1", &[how.as_bytes(), said].concat());
    let (id, _) = hash.split_first_chunk().unwrap_or_else(|| unreachable!("a hash has 32 bytes"));
    MachineId(*id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_the_same_each_time_and_none_that_is_named() {
        assert_eq!(machine(), machine());
        assert_ne!(of("named", b"node7"), of("named", b"node8"));
        assert_ne!(of("named", b"node7"), of("found", b"node7"));
    }
}
