//! Trampolines for the variadic names: they jump to their bodies, in C (`c/variadic.c`) where arguments must be taken off the
//! stack, with every register as it came.

use std::arch::naked_asm;

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    ($body:path) => { naked_asm!("jmp {}", sym $body) };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    ($body:path) => { naked_asm!("b {}", sym $body) };
}

mod bodies {
    //! What `c/variadic.c` defines, and `syscall`, whose arguments are registers all.
    pub use crate::hooks::roundabout::stdchk_preload_syscall;

    unsafe extern "C" {
        pub fn stdchk_variadic_open();
        pub fn stdchk_variadic_openat();
        pub fn stdchk_variadic_fcntl();
        pub fn stdchk_variadic_vdprintf();
        pub fn stdchk_variadic_vdprintf_checked();
        pub fn stdchk_variadic_dprintf();
        pub fn stdchk_variadic_dprintf_checked();
        pub fn stdchk_variadic_execl();
        pub fn stdchk_variadic_execlp();
        pub fn stdchk_variadic_execle();
        pub fn stdchk_variadic_dlopen();
    }
}

/// Several names share a body: on 64-bit systems the `64` forms are the same functions.
macro_rules! trampolines {
    ($($name:ident => $body:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`, variadic in C.")]
        ///
        /// # Safety
        /// As for the C function.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name() {
            jump!(bodies::$body)
        }
    )*};
}

trampolines! {
    open => stdchk_variadic_open;
    open64 => stdchk_variadic_open;
    openat => stdchk_variadic_openat;
    openat64 => stdchk_variadic_openat;
    fcntl => stdchk_variadic_fcntl;
    fcntl64 => stdchk_variadic_fcntl;
    vdprintf => stdchk_variadic_vdprintf;
    __vdprintf_chk => stdchk_variadic_vdprintf_checked;
    dprintf => stdchk_variadic_dprintf;
    __dprintf_chk => stdchk_variadic_dprintf_checked;
    execl => stdchk_variadic_execl;
    execlp => stdchk_variadic_execlp;
    execle => stdchk_variadic_execle;
    syscall => stdchk_preload_syscall;
    dlopen => stdchk_variadic_dlopen;
}
