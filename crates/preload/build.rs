//! Builds the variadic entry points: the one thing that the C ABI forces to be C.

fn main() {
    println!("cargo:rerun-if-changed=c/variadic.c");
    cc::Build::new()
        .file("c/variadic.c")
        .warnings(true)
        .extra_warnings(true)
        .opt_level(2)
        .compile("stdchk_variadic");
}
