//! What one read of each clock costs.

use std::hint::black_box;
use std::time::Instant;

use chronovisor_bench::{page, record};
use chronovisor_guest::clock::GuestClock;
use chronovisor_guest::counter::{Rdtscp, Unordered, lfence_rdtsc, rdtsc, rdtscp, read_fenced};
use chronovisor_guest::linux::Clock;
use chronovisor_guest::linux::getcpu::GetcpuRdtsc;
use chronovisor_guest::linux::os_clock::ClockId;
use chronovisor_guest::linux::pages::KernelPages;
use chronovisor_guest::pvclock::{SharedRecord, StableBit};
use chronovisor_guest::reference_tsc::ReferencePage;
use criterion::{Criterion, criterion_group, criterion_main};

fn counters(c: &mut Criterion) {
    let mut group = c.benchmark_group("counter");
    group.bench_function("rdtsc", |b| b.iter(rdtsc));
    group.bench_function("lfence-rdtsc", |b| b.iter(lfence_rdtsc));
    group.bench_function("rdtscp", |b| b.iter(rdtscp));
    group.bench_function("fenced", |b| b.iter(read_fenced));
    group.finish();
}

fn pages(c: &mut Criterion) {
    let (record, page) = (record(), page());
    let mut group = c.benchmark_group("page");
    let shared = SharedRecord::new(&record, Rdtscp, StableBit::Advertised);
    group.bench_function("pvclock", |b| b.iter(|| shared.read()));
    let unordered = SharedRecord::new(&record, Unordered, StableBit::Advertised);
    group.bench_function("pvclock-unordered", |b| b.iter(|| unordered.read()));
    let reference = ReferencePage::new(&page, Rdtscp);
    group.bench_function("reference", |b| b.iter(|| reference.read()));
    let unordered = ReferencePage::new(&page, Unordered);
    group.bench_function("reference-unordered", |b| b.iter(|| unordered.read()));
    match KernelPages::find().map(|pages| pages.pvclock()) {
        Ok(Ok(kernel)) => {
            let shared = kernel.reader(Rdtscp, StableBit::Advertised);
            group.bench_function("kernel-pvclock", |b| b.iter(|| shared.read()));
            let per_cpu = kernel.per_cpu_reader(Rdtscp);
            group.bench_function("kernel-pvclock-per-cpu", |b| b.iter(|| per_cpu.read()));
            let getcpu = kernel.per_cpu_reader(GetcpuRdtsc);
            group.bench_function("kernel-pvclock-getcpu", |b| b.iter(|| getcpu.read()));
        }
        Ok(Err(error)) => eprintln!("skipped: {error}"),
        Err(error) => eprintln!("skipped: {error}"),
    }
    group.finish();
}

fn clocks(c: &mut Criterion) {
    let clock = Clock::new();
    let quanta = quanta::Clock::new();
    let mut group = c.benchmark_group("clock");
    group.bench_function("chronovisor-now", |b| b.iter(|| clock.now()));
    group.bench_function("chronovisor-now-ordered", |b| {
        b.iter(|| clock.now_ordered())
    });
    group.bench_function("quanta-now", |b| b.iter(|| quanta.now()));
    group.bench_function("minstant-now", |b| b.iter(minstant::Instant::now));
    group.bench_function("std-instant", |b| b.iter(Instant::now));
    group.bench_function("vdso-monotonic", |b| {
        b.iter(|| black_box(ClockId::MONOTONIC).now())
    });
    group.bench_function("syscall-monotonic", |b| {
        b.iter(|| black_box(ClockId::MONOTONIC).now_by_system_call());
    });
    group.finish();
}

criterion_group!(benches, counters, pages, clocks);
criterion_main!(benches);
