//! Ticks of a timer, each with the TSC at the entry of its interrupt.

use core::sync::atomic::Ordering;

use crate::apic::{self, Mode};
use crate::contract::{Job, record, timer};
use crate::experiment::barrier;
use crate::gate::in_ring0;
use crate::instruction::{ordered_tsc, wait_for_interrupt, wrmsr};
use crate::{cpu, report};

const VECTOR: u64 = 0x40;
const STIMER0_CONFIG: u32 = 0x4000_00B0;
const STIMER0_COUNT: u32 = 0x4000_00B1;
const STIMER_ENABLE_PERIODIC_DIRECT: u64 = 1 | 1 << 1 | 1 << 12;
const STIMER_VECTOR_SHIFT: u64 = 4;

/// Argument 0: which timer; 1: ticks; 2: period in the timer's own units; 3: period in TSC ticks.
///
/// The interrupt handler puts each tick's TSC into the sample array.
pub fn run(job: &Job) {
    let [which, ticks, period, period_tsc, ..] = job.argument;
    in_ring0(apic::enable);
    // Only now do all CPUs arm at once: they did not come up at once.
    barrier(job.vcpus);
    let start = in_ring0(|| {
        let cpu = cpu::this();
        let seen = || cpu.interrupts.load(Ordering::Acquire);
        let start = ordered_tsc();
        match which {
            timer::PERIODIC => {
                apic::set_timer(Mode::Periodic, VECTOR);
                apic::count_down(period);
                while seen() < ticks {
                    wait_for_interrupt();
                }
                apic::stop_timer();
            }
            timer::ONE_SHOT => {
                apic::set_timer(Mode::OneShot, VECTOR);
                while seen() < ticks {
                    apic::count_down(period);
                    let before = seen();
                    while seen() == before {
                        wait_for_interrupt();
                    }
                }
                apic::stop_timer();
            }
            timer::TSC_DEADLINE => {
                apic::set_timer(Mode::TscDeadline, VECTOR);
                let mut deadline = start;
                while seen() < ticks {
                    deadline += period_tsc;
                    apic::arm_deadline(deadline);
                    let before = seen();
                    while seen() == before {
                        wait_for_interrupt();
                    }
                }
                apic::stop_timer();
            }
            _ => {
                wrmsr(STIMER0_COUNT, period);
                wrmsr(
                    STIMER0_CONFIG,
                    STIMER_ENABLE_PERIODIC_DIRECT | VECTOR << STIMER_VECTOR_SHIFT,
                );
                while seen() < ticks {
                    wait_for_interrupt();
                }
                wrmsr(STIMER0_CONFIG, 0);
            }
        }
        start
    });
    report::push(record::SAMPLES, 0, [start, 0, 0]);
}
