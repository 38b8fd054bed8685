//! What a guard adds to a read, on one thread and while another thread reads under the same guard.

use std::sync::atomic::{AtomicBool, Ordering};

use chronovisor_bench::record;
use chronovisor_guest::clock::GuestClock;
use chronovisor_guest::counter::Rdtscp;
use chronovisor_guest::guard::{CoarseGuard, GlobalGuard, Guard, Guarded};
use chronovisor_guest::pvclock::{SharedRecord, StableBit};
use criterion::{Criterion, criterion_group, criterion_main};

fn guards(c: &mut Criterion) {
    let record = record();
    let clock = SharedRecord::new(&record, Rdtscp, StableBit::Advertised);
    let (global, coarse) = (
        GlobalGuard::new(),
        CoarseGuard::with_quantum_of_2_to_the::<10>(),
    );
    let mut group = c.benchmark_group("guard");
    group.bench_function("none", |b| b.iter(|| clock.read()));
    let guards: [(&str, &(dyn Guard + Sync)); 2] = [("global", &global), ("coarse", &coarse)];
    for (name, guard) in guards {
        let guarded = Guarded::new(clock, guard);
        group.bench_function(name, |b| b.iter(|| guarded.read()));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _ = std::hint::black_box(guarded.read());
                }
            });
            group.bench_function(format!("{name}-two-threads"), |b| b.iter(|| guarded.read()));
            stop.store(true, Ordering::Relaxed);
        });
    }
    group.finish();
}

criterion_group!(benches, guards);
criterion_main!(benches);
