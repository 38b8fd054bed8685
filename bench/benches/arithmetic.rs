//! The multiplications behind a reading: 64 by 64 bits as the machine does it, and from 32-bit limbs as a 32-bit guest must.

use std::hint::black_box;

use chronovisor_abi::quantity::{Hertz, Tsc, TscDelta};
use chronovisor_abi::scale::{PvclockScale, ReferenceScale, mul_high, mul_limbs};
use criterion::{Criterion, criterion_group, criterion_main};

fn multiplication(c: &mut Criterion) {
    let (a, b) = (0x1234_5678_9abc_def0_u64, 0x00fc_0fc0_fc0f_c0fc_u64);
    let mut group = c.benchmark_group("multiply-64x64");
    group.bench_function("u128", |bench| {
        bench.iter(|| mul_high(black_box(a), black_box(b)))
    });
    group.bench_function("limbs", |bench| {
        // Both halves: a compiler for 64 bits turns limbs of which only the upper half is used into its one multiplication.
        bench.iter(|| mul_limbs(black_box(a), black_box(b)))
    });
    group.finish();
}

fn scales(c: &mut Criterion) {
    let rate = Hertz::from_hz(2_600_000_000).expect("not zero");
    let pvclock = PvclockScale::nearest(rate).expect("in range");
    let reference = ReferenceScale::from_frequency(rate).expect("above 10 MHz");
    let ticks = 0x0123_4567_89ab_u64;
    let mut group = c.benchmark_group("scale");
    group.bench_function("pvclock", |b| {
        b.iter(|| black_box(pvclock).nanos(TscDelta::from_ticks(black_box(ticks))))
    });
    group.bench_function("reference", |b| {
        b.iter(|| black_box(reference).ticks(Tsc::from_ticks(black_box(ticks))))
    });
    group.bench_function("make-pvclock", |b| {
        b.iter(|| PvclockScale::nearest(black_box(rate)))
    });
    group.bench_function("make-reference", |b| {
        b.iter(|| ReferenceScale::from_frequency(black_box(rate)))
    });
    group.finish();
}

criterion_group!(benches, multiplication, scales);
criterion_main!(benches);
