//! Builds the variadic entry points: the one thing that the C ABI forces to be C.

fn main() {
    // A hook that goes on in another one means that one, also where the program brings a function of that name: the
    // `renameat2` of GNU patch calls `syscall`, whose hook goes on in that of `renameat2`.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    println!("cargo:rerun-if-changed=c/variadic.c");
    cc::Build::new()
        .file("c/variadic.c")
        .warnings(true)
        .extra_warnings(true)
        .opt_level(2)
        .compile("stdchk_variadic");
}
