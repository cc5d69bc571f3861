//! A local pool whose whole disk is full: it starts, also after all its processes were killed, and serves what it has.
//!
//! The disk is a small file system in a mount namespace of the pool's own, as in `stdchk_tests::Disk`.

use std::process::Command;

use stdchk_tests::{Pool, binary, outcome, random_bytes};

/// Stops a pool below `$1` in two ways, fills its disk to the last byte, and starts it again. `$2`: the binary, `$3`: a file.
/// The floor is above what the manager then gives up of its reserve.
const SCRIPT: &str = r#"
set -eu
mount -t tmpfs -o size=100m stdchk "$1"
cd "$1"
export STDCHK_DATA="$1/pool"
"$2" up --benefactors 2 --donate 16MiB --floor 20MiB
trap '"$2" down' EXIT
for how in down kill; do
    "$2" put "$3" "app/$how"
    case $how in
        down) "$2" down ;;
        kill) kill -9 $(for link in pool/run/*.pid; do readlink "$link" | cut -d ' ' -f 1; done) ;;
    esac
    cat /dev/zero > rest 2> /dev/null || true
    test "$(stat --file-system --format %a .)" = 0
    "$2" up
    "$2" get "app/$how" -o - | cmp - "$3"
    if "$2" put "$3" app/more; then echo "there was room for more"; exit 9; fi
    "$2" get "app/$how" -o - | cmp - "$3"
    rm rest
    "$2" put "$3" app/more
    "$2" rm app/more
done
"#;

#[test]
fn a_pool_on_a_disk_without_a_free_byte_starts_and_serves() {
    let other = Pool::up(1, &[]);
    let (place, source) = (other.path("disk"), other.file("source", &random_bytes(3_000_000, 8)));
    std::fs::create_dir(&place).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", SCRIPT, "sh"]);
    command.arg(&place).arg(binary()).arg(source);
    other.apply_to(&mut command);
    let outcome = outcome(command);
    assert_eq!(outcome.code, 0, "{outcome:?}");
}
