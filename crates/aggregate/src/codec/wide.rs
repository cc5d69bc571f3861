//! Loops that are compiled once more for the vector instructions of newer processors, which are detected at run time.
//!
//! Relies on nothing. The idea: a loop is written once, in safe code that compilers turn into vectors; here it is compiled
//! again with wider ones allowed. So every machine makes the same bytes, and no instruction is written by hand. Tests may
//! ask for less than the processor has, so that every form that it can run is compared with the portable one.

/// What a loop may be compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "other processors have one form"))]
pub(crate) enum Width {
    /// What every processor of the architecture has.
    Portable,
    /// AVX2 and BMI.
    Avx2,
    /// Also AVX-512 with all lengths of vectors and elements of a byte.
    Avx512,
}

/// The widest form that this processor can run.
#[cfg(target_arch = "x86_64")]
fn widest() -> Width {
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match (avx2, avx512) {
        (true, true) => Width::Avx512,
        (true, false) => Width::Avx2,
        (false, _) => Width::Portable,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn widest() -> Width {
    Width::Portable
}

/// The form to run, which is never wider than the processor can.
#[inline]
#[cfg(not(test))]
pub(crate) fn width() -> Width {
    widest()
}

#[cfg(test)]
pub(crate) use tests::width;

/// Functions that do what a portable one does, with the widest vectors that the processor has. The portable one must be
/// `#[inline(always)]`, so that it is compiled anew in each.
macro_rules! widely {
    ($($(#[$note:meta])* $name:ident = $portable:ident($($arg:ident: $kind:ty),*) $(-> $out:ty)?;)*) => {$(
        $(#[$note])*
        pub(crate) fn $name($($arg: $kind),*) $(-> $out)? {
            #[cfg(target_arch = "x86_64")]
            {
                use $crate::codec::wide::{Width, width};

                #[target_feature(enable = "avx2,bmi1,bmi2")]
                fn with_avx2($($arg: $kind),*) $(-> $out)? {
                    $portable($($arg),*)
                }
                #[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512bw,avx512dq,avx512vl")]
                fn with_avx512($($arg: $kind),*) $(-> $out)? {
                    $portable($($arg),*)
                }
                match width() {
                    Width::Avx512 => {
                        // SAFETY: the processor was asked for every feature just now.
                        #[expect(unsafe_code, reason = "safe code, compiled for features found at run time")]
                        return unsafe { with_avx512($($arg),*) };
                    }
                    Width::Avx2 => {
                        // SAFETY: the processor was asked for every feature just now.
                        #[expect(unsafe_code, reason = "safe code, compiled for features found at run time")]
                        return unsafe { with_avx2($($arg),*) };
                    }
                    Width::Portable => {}
                }
            }
            $portable($($arg),*)
        }
    )*};
}

pub(crate) use widely;

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;
    use std::fmt::Debug;

    use super::{Width, widest};

    thread_local! {
        static ALLOWED: Cell<Width> = const { Cell::new(Width::Avx512) };
    }

    pub(crate) fn width() -> Width {
        widest().min(ALLOWED.get())
    }

    /// What `work` gives in its portable form, after it gave the same in every form that this processor can run.
    pub(crate) fn at_every_width<T: PartialEq + Debug>(work: impl Fn() -> T) -> T {
        ALLOWED.set(Width::Portable);
        let portable = work();
        for allowed in [Width::Avx2, Width::Avx512] {
            ALLOWED.set(allowed);
            assert_eq!(work(), portable, "as {:?} and portable", width());
        }
        portable
    }

    #[test]
    fn what_is_asked_for_is_run_as_far_as_the_processor_can() {
        assert_eq!(at_every_width(|| ()), ());
        assert_eq!(width(), widest());
        ALLOWED.set(Width::Portable);
        assert_eq!(width(), Width::Portable);
    }
}
