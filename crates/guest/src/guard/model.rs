//! Every interleaving of three CPUs under each guard, by the model checker: run with `RUSTFLAGS="--cfg loom"`.

use std::sync::Arc;
use std::vec::Vec;

use super::{CoarseGuard, GlobalGuard, Guard, Nanos};
use chronovisor_abi::seqlock::sync::{AtomicU64, Ordering};

/// Two CPUs read and hand their time on; a third takes what it was handed and reads. Their clocks disagree.
fn model<G: Guard + Send + Sync + 'static>(new: fn() -> G) {
    loom::model(move || {
        let (guard, handed) = (Arc::new(new()), Arc::new(AtomicU64::new(0)));
        let readers: Vec<_> = [130, 70]
            .into_iter()
            .map(|clock| {
                let (guard, handed) = (Arc::clone(&guard), Arc::clone(&handed));
                loom::thread::spawn(move || {
                    let first = guard.admit(Nanos::from_ns(clock)).as_ns();
                    handed.store(first, Ordering::Release);
                    let second = guard.admit(Nanos::from_ns(clock - 10)).as_ns();
                    assert!(second >= first, "one CPU went back: {second} after {first}");
                })
            })
            .collect();
        let before = handed.load(Ordering::Acquire);
        let time = guard.admit(Nanos::from_ns(50)).as_ns();
        assert!(
            time >= before,
            "another CPU went back: {time} after {before}"
        );
        for reader in readers {
            reader.join().expect("reader");
        }
    });
}

#[test]
fn the_global_guard_never_goes_back() {
    model(GlobalGuard::new);
}

#[test]
fn the_coarse_guard_never_goes_back() {
    model(CoarseGuard::with_quantum_of_2_to_the::<6>);
}

/// A guard that stores instead of raising: what a careless one does.
struct Careless(AtomicU64);

impl Guard for Careless {
    fn admit(&self, time: Nanos) -> Nanos {
        let time_ns = time.as_ns().max(self.0.load(Ordering::Relaxed));
        self.0.store(time_ns, Ordering::Relaxed);
        Nanos::from_ns(time_ns)
    }

    fn reset(&self) {}
}

/// The model can fail.
#[test]
#[should_panic(expected = "went back")]
fn the_model_sees_a_lost_update() {
    model(|| Careless(AtomicU64::new(0)));
}
