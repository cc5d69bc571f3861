//! A local pool whose whole disk is full: it starts, also after all its processes were killed, and serves what it has.
//!
//! The disk is a small file system in a mount namespace of the pool's own, as in `stdchk_tests::Disk`.

use std::process::Command;

use stdchk_tests::{Pool, binary, outcome};

/// Stops a pool below `$1` in two ways, fills its disk to the last byte, and starts it again. `$2`: the binary, `$3`: a path for
/// a file, `$4`: where the pool is mounted. The floor is above what the manager then gives up of its reserve. What is put has new
/// bytes each time: those that the pool has need no room. Benefactors report their room every second or so.
const SCRIPT: &str = r#"
set -eu
mount -t tmpfs -o size=100m stdchk "$1"
cd "$1"
export STDCHK_DATA="$1/pool"
fail() { echo "$*"; exit 99; }
random() { head -c 3000000 /dev/urandom; }
serves() {
    "$2" get "app/$how" -o - | cmp - "$3"
    cmp "$4/app/$how" "$3"
}
put_more() {
    code=0
    random | "$2" put - app/more || code=$?
}
"$2" up --benefactors 2 --donate 16MiB --floor 20MiB --mount "$4"
trap '"$2" down' EXIT
for how in down kill; do
    random > "$3"
    "$2" put "$3" "app/$how"
    case $how in
        down) "$2" down ;;
        kill) kill -9 $(for link in pool/run/*.pid; do readlink "$link" | cut -d ' ' -f 1; done) ;;
    esac
    cat /dev/zero > rest 2> /dev/null || true
    test "$(stat --file-system --format %a .)" = 0 || fail "the disk is not full"
    "$2" up
    serves "$@"
    put_more "$@"
    test $code = 6 || fail "a put to a full disk ended with $code"
    ! random > "$4/app/more" || fail "the mount took a file"
    serves "$@"
    rm rest
    looks=0
    until put_more "$@" && test $code = 0; do
        test $code = 6 && test $looks -lt 600 || fail "a put to a disk with room ended with $code"
        looks=$((looks + 1))
        sleep 0.1
    done
    "$2" rm app/more
    cp "$3" "$4/app/more"
    rm "$4/app/more"
    serves "$@"
done
"#;

#[test]
fn a_pool_on_a_disk_without_a_free_byte_starts_and_serves() {
    let other = Pool::up(1, &[]);
    let (place, source, mount) = (other.path("disk"), other.path("source"), other.path("mnt"));
    std::fs::create_dir(&place).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", SCRIPT, "sh"]);
    command.arg(&place).arg(binary()).args([source, mount]);
    other.apply_to(&mut command);
    let outcome = outcome(command);
    assert_eq!(outcome.code, 0, "{outcome:?}");
}
