//! /dev/kvm for a test, or a skip.

use chronovisor_lab::backend::Backend;

/// The backend; `None` after saying `skipped`, which is a failure where KVM is required.
pub(crate) fn open() -> Option<Backend> {
    match Backend::open() {
        Ok(backend) => Some(backend),
        Err(error) if error.is_not_possible_here() => {
            assert!(
                std::env::var_os("CHRONOVISOR_REQUIRE_KVM").is_none_or(|value| value != "1"),
                "CHRONOVISOR_REQUIRE_KVM=1, but {error}"
            );
            println!("skipped: no /dev/kvm ({error})");
            None
        }
        Err(error) => panic!("{error}"),
    }
}
