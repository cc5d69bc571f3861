//! The same loops compiled for the vector instructions of newer processors, found at run time.
//!
//! Relies on nothing. The idea: a loop is written once, in safe code that compilers turn into vectors; here it is compiled
//! again with wider ones allowed. So every machine makes the same bytes, and no instruction is written by hand.

/// Functions that do what a portable one does, with the widest vectors that the processor has. The portable one must be
/// `#[inline(always)]`, so that it is compiled anew in each.
macro_rules! widely {
    ($($(#[$note:meta])* $name:ident = $portable:ident($($arg:ident: $kind:ty),*) $(-> $out:ty)?;)*) => {$(
        $(#[$note])*
        pub(crate) fn $name($($arg: $kind),*) $(-> $out)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,bmi1,bmi2")]
                fn with_avx2($($arg: $kind),*) $(-> $out)? {
                    $portable($($arg),*)
                }
                #[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512bw,avx512dq,avx512vl")]
                fn with_avx512($($arg: $kind),*) $(-> $out)? {
                    $portable($($arg),*)
                }
                if is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("bmi2")
                    && is_x86_feature_detected!("bmi1")
                    && is_x86_feature_detected!("avx2")
                {
                    // SAFETY: the processor was asked for every feature just now.
                    #[expect(unsafe_code, reason = "safe code, compiled for features found at run time")]
                    return unsafe { with_avx512($($arg),*) };
                }
                if is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("bmi2")
                    && is_x86_feature_detected!("bmi1")
                {
                    // SAFETY: the processor was asked for every feature just now.
                    #[expect(unsafe_code, reason = "safe code, compiled for features found at run time")]
                    return unsafe { with_avx2($($arg),*) };
                }
            }
            $portable($($arg),*)
        }
    )*};
}

pub(crate) use widely;
