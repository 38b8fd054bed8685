//! Readers of a page while nobody writes it, and while a writer re-publishes it without rest.

use std::sync::atomic::{AtomicBool, Ordering};

use chronovisor_bench::{contents, page, record};
use chronovisor_guest::counter::Unordered;
use criterion::{Criterion, criterion_group, criterion_main};

fn readers(c: &mut Criterion) {
    let (record, page) = (record(), page());
    let mut group = c.benchmark_group("seqlock");
    group.bench_function("odd-while-updating", |b| b.iter(|| record.read(1, || ())));
    group.bench_function("zero-is-invalid", |b| b.iter(|| page.read(1, || ())));
    group.bench_function("version-only", |b| b.iter(|| record.try_version(|| ())));

    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut last, contents) = (record.version(), contents());
            while !stop.load(Ordering::Relaxed) {
                record.mark(last);
                record.store(&contents);
                last = record.publish(last);
                // An update in every microsecond or so, a million times what a hypervisor does.
                for _ in 0..40 {
                    std::hint::black_box(chronovisor_guest::counter::Counter::read(&Unordered));
                }
            }
        });
        group.bench_function("odd-while-updating-contended", |b| {
            b.iter(|| record.read(10_000, || ()))
        });
        stop.store(true, Ordering::Relaxed);
    });
    group.finish();
}

criterion_group!(benches, readers);
criterion_main!(benches);
