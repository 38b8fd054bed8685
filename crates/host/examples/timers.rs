//! A local APIC timer of 1 ms, woken in real time by a timerfd, for 5 seconds.
//!
//!     cargo run --release -p chronovisor-host --example timers
//!
//! The guest's TSC is played by CLOCK_MONOTONIC_RAW at 2.6 GHz, which no one slews; the timerfd counts CLOCK_MONOTONIC, which a time daemon may slew. So
//! a wake-up can come early, and is then set again. The timer's grid hangs on the TSC alone and cannot drift.
//!
//! Unsafe for the system calls of libc: clock_gettime, timerfd_create, timerfd_settime, read.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use chronovisor_abi::apic::{DivideConfiguration, LvtTimer, TimerMode};
use chronovisor_abi::quantity::{Hertz, Nanos, Reading, Tsc};
use chronovisor_host::apic::{
    Backend, Deadline, DeadlineMode, Delivery, LocalTimer, LostTicks, MinimumPeriod, OutOfRange,
    Place, PreemptionTimer, Rates, Settings, SoftwareTimer, TimerRegister, Wake, Wakeups,
};
use chronovisor_stats::{Histogram, Point, fit, median};

const TSC_HZ: u64 = 2_600_000_000;
const PERIOD_TICKS: u64 = TSC_HZ / 1000;
const SECONDS: u64 = 5;

/// The software timer's model, carried out by a timerfd.
struct TimerFd {
    model: SoftwareTimer,
    fd: OwnedFd,
}

impl TimerFd {
    fn new(tsc: Hertz) -> io::Result<Self> {
        // SAFETY: no pointer is passed.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was opened by the call above and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let model = SoftwareTimer::new(tsc);
        Ok(Self { model, fd })
    }

    /// Sets the timerfd to what the model says; 0 takes it back.
    fn apply(&self) -> io::Result<()> {
        let ns = self.model.expires().map_or(0, |at| at.as_ns().max(1));
        let seconds = libc::time_t::try_from(ns / 1_000_000_000).map_err(io::Error::other)?;
        let nanos = libc::c_long::try_from(ns % 1_000_000_000).map_err(io::Error::other)?;
        let value = libc::itimerspec {
            it_interval: libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: libc::timespec {
                tv_sec: seconds,
                tv_nsec: nanos,
            },
        };
        let flags = libc::TFD_TIMER_ABSTIME;
        // SAFETY: the descriptor is open, `value` lives through the call, and a null pointer for the old value is allowed.
        let done = unsafe {
            libc::timerfd_settime(
                self.fd.as_raw_fd(),
                flags,
                &raw const value,
                core::ptr::null_mut(),
            )
        };
        if done < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    /// Waits until the timer has expired.
    fn wait(&self) -> io::Result<()> {
        let mut expirations = 0_u64;
        // SAFETY: the buffer is the 8 bytes that a timerfd writes, and lives through the call.
        let read = unsafe {
            libc::read(
                self.fd.as_raw_fd(),
                (&raw mut expirations).cast(),
                size_of::<u64>(),
            )
        };
        if read < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }
}

impl Backend for TimerFd {
    fn set(&mut self, deadline: Deadline, now: Reading<Nanos>) -> Result<(), OutOfRange> {
        self.model.set(deadline, now)
    }

    fn clear(&mut self) {
        self.model.clear();
    }
}

fn clock(id: libc::clockid_t) -> io::Result<u64> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a timespec that lives through the call.
    if unsafe { libc::clock_gettime(id, &raw mut time) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let seconds = u64::try_from(time.tv_sec).map_err(io::Error::other)?;
    let nanos = u64::try_from(time.tv_nsec).map_err(io::Error::other)?;
    Ok(seconds * 1_000_000_000 + nanos)
}

/// Host time, and the guest's TSC of the same instant or at most one clock read later.
fn reading() -> io::Result<Reading<Nanos>> {
    let host = clock(libc::CLOCK_MONOTONIC)?;
    let raw = clock(libc::CLOCK_MONOTONIC_RAW)?;
    // 2.6 ticks a nanosecond, rounded down.
    Ok(Reading::new(
        Nanos::from_ns(host),
        Tsc::from_ticks(raw * 13 / 5),
    ))
}

fn timer(start: Tsc) -> Result<LocalTimer, Box<dyn std::error::Error>> {
    let hz = |hz| Hertz::from_hz(hz).ok_or("a rate of 0");
    let settings = Settings {
        rates: Rates::new(hz(1_000_000_000)?, hz(TSC_HZ)?)?,
        minimum_period: MinimumPeriod::KVM,
        lost_ticks: LostTicks::Merge,
        deadline_mode: DeadlineMode::Offered,
    };
    let mut timer = LocalTimer::new(settings, start);
    for (register, value) in [
        (
            TimerRegister::LvtTimer,
            LvtTimer::new(TimerMode::PERIODIC, 0xec).0,
        ),
        (
            TimerRegister::DivideConfiguration,
            DivideConfiguration::BY_1.0,
        ),
        (TimerRegister::InitialCount, 1_000_000),
    ] {
        let _ = timer.write(register, value.into(), start);
    }
    Ok(timer)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let start = reading()?;
    let mut timer = timer(start.tsc)?;
    let tsc = timer.settings().rates.tsc();
    let preemption = PreemptionTimer::new(5).ok_or("granularity")?;
    let mut wakeups = Wakeups::new(TimerFd::new(tsc)?, preemption);
    let _ = wakeups.set(&timer, Place::Host, reading()?);

    let mut intervals_ns = Histogram::new();
    let mut lateness_ns = Vec::new();
    let (mut early, mut merged, mut tick) = (0_u64, 0_u64, 0_u64);
    let mut last = start.tsc;
    while tick < SECONDS * 1000 {
        wakeups.software().apply()?;
        wakeups.software().wait()?;
        let now = reading()?;
        let Wake::Done(effects) = wakeups.wake(&mut timer, Place::Host, now) else {
            early += 1;
            continue;
        };
        if effects.delivery == Delivery::Nothing {
            continue;
        }
        tick += effects.expiries;
        merged += effects.merged;
        let elapsed = now.tsc.wrapping_delta(start.tsc).as_ticks();
        // Late against the ideal grid: start + tick * 1 ms.
        lateness_ns.push(Point {
            x: i64::try_from(elapsed * 5 / 13)?,
            y: i64::try_from((elapsed - tick * PERIOD_TICKS) * 5 / 13)?,
        });
        intervals_ns.record(now.tsc.wrapping_delta(last).as_ticks() * 5 / 13);
        last = now.tsc;
    }
    let intervals = intervals_ns.summary().ok_or("no tick was delivered")?;
    // Delays only add: the least lateness of each 100 ticks is what a drift would raise or lower.
    let least: Vec<Point> = lateness_ns
        .chunks(100)
        .filter_map(|ticks| ticks.iter().min_by_key(|point| point.y).copied())
        .collect();
    let drift = fit(&least).ok_or("too few ticks for a line")?;
    println!(
        "{tick} ticks of 1 ms on a timerfd: {} delivered, {merged} merged, {early} early wake-ups set again",
        intervals.count
    );
    println!(
        "between two ticks, us: max {:.1}, mean {:.3}, deviation {:.1}",
        us(intervals.max),
        intervals.mean / 1e3,
        intervals.deviation / 1e3
    );
    let (first, rest) = lateness_ns.split_at(lateness_ns.len() / 2);
    println!(
        "lateness, us: median of the first half {:.1}, of the second half {:.1}; drift of the least in each 100 ticks {:.2} ppm, error {:.2} ppm",
        median_us(first),
        median_us(rest),
        drift.ppm(),
        drift.slope_error * 1e6
    );
    let end = timer.next_deadline().ok_or("the timer stopped")?.at();
    let off_grid = end.wrapping_delta(start.tsc).as_ticks() % PERIOD_TICKS;
    println!("next deadline: {off_grid} TSC ticks off the grid of the start");
    if off_grid != 0 {
        return Err("the grid has moved".into());
    }
    Ok(())
}

fn us(ns: u64) -> f64 {
    u32::try_from(ns).map_or(f64::INFINITY, f64::from) / 1e3
}

fn median_us(points: &[Point]) -> f64 {
    let values: Vec<f64> = points
        .iter()
        .map(|point| us(point.y.unsigned_abs()))
        .collect();
    median(&values).unwrap_or(f64::NAN)
}
