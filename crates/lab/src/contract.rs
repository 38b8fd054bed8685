//! What the lab's VMM and its guest image agree on: where things lie in guest memory, what a job and a record are.
//!
//! This one file is compiled into both (the image names it by path), so the two cannot part. Everything crosses as
//! 64-bit words.

/// Where the image is linked and loaded.
pub const IMAGE_GPA: u64 = 0x10_0000;
/// The page tables that the VMM writes: identity map, 2 MiB pages, user access.
pub const PAGE_TABLES_GPA: u64 = 0x9000;
/// The real-mode trampoline of the SIPI; its page number is the SIPI vector.
pub const TRAMPOLINE_GPA: u64 = 0x8000;
/// The job, as [`Job::to_words`].
pub const JOB_GPA: u64 = 0x1_0000;
/// The VMM writes something other than 0 here to end an experiment that has no end of its own.
pub const STOP_WORD_GPA: u64 = JOB_GPA + 0x800;
/// The first report slot; one of [`REPORT_BYTES`] for each vCPU.
pub const REPORT_GPA: u64 = 0x2_0000;
/// Size of a report slot in bytes.
pub const REPORT_BYTES: u64 = 0x4000;
/// Arrays of samples (8 bytes each), one of [`SAMPLES_BYTES`] for each vCPU.
pub const SAMPLES_GPA: u64 = 0x200_0000;
/// Size of a vCPU's sample array in bytes.
pub const SAMPLES_BYTES: u64 = 0x20_0000;
/// Most vCPUs that the image has stacks for.
pub const MAX_VCPUS: u64 = 16;
/// Guest memory that the layout needs, in bytes.
pub const MEMORY_BYTES: u64 = SAMPLES_GPA + SAMPLES_BYTES * MAX_VCPUS;

/// `out` of a [`status`] (u32): this vCPU is done. QEMU's `isa-debug-exit` sits at the same port.
pub const DONE_PORT: u16 = 0xF4;
/// `out` of one byte: the hypercall that returns the time. The VMM puts the reference time (100 ns) into RAX.
pub const TIME_PORT: u16 = 0xF6;
/// `out` of a CPU index (u32): this vCPU runs its first instructions.
pub const HELLO_PORT: u16 = 0xF8;
/// `out` of one byte: the guest stands still between two rounds; the VMM may pause and move it.
pub const CHECKPOINT_PORT: u16 = 0xFA;
/// The first serial port.
pub const SERIAL_PORT: u16 = 0x3F8;

/// An MSR that the VMM answers at once with 0: the bare cost of an exit to user space.
pub const NULL_MSR: u32 = 0x4000_01F0;

/// What a write of KVM's system-time MSR (0x4b564d01) does, but to our own publisher: KVM answers the real one itself.
pub const OUR_SYSTEM_TIME_MSR: u32 = 0x4000_01F1;

/// First word of a job.
pub const JOB_MAGIC: u64 = 0x6368_726f_6e6f_3031;

/// What a vCPU says at [`DONE_PORT`].
pub mod status {
    /// The job is done, the report is complete.
    pub const DONE: u32 = 0x10;
    /// The image panicked; the place is on the serial port.
    pub const PANIC: u32 = 0x11;
    /// An exception without a handler; the registers are on the serial port.
    pub const FAULT: u32 = 0x12;
    /// A conformance check failed.
    pub const NOT_CONFORMING: u32 = 0x14;
    /// The job names no known experiment.
    pub const BAD_JOB: u32 = 0x13;
    /// The hypervisor refused a clock without which the job means nothing.
    pub const REFUSED: u32 = 0x15;
}

/// Experiments, by number.
pub mod experiment {
    /// Says hello and ends: how long a VM takes to start.
    pub const HELLO: u64 = 1;
    /// Cost of one read of each clock.
    pub const CLOCKS: u64 = 2;
    /// Whether clocks that must agree do.
    pub const AGREEMENT: u64 = 3;
    /// Bring-up of application processors and their delay loops.
    pub const SMP: u64 = 4;
    /// Timer ticks.
    pub const TIMERS: u64 = 5;
    /// Reads all clocks while the VMM moves the guest.
    pub const MIGRATE: u64 = 6;
    /// The conformance checks, as TAP on the serial port.
    pub const CONFORMANCE: u64 = 8;
    /// KVM's own Hyper-V clock and ours, one after the other.
    pub const BESIDE: u64 = 9;
    /// Misbehaves on purpose; argument 0 says how.
    pub const HOSTILE: u64 = 7;
}

/// How an application processor gets the value of its delay loop.
pub mod calibration {
    /// Measured against the reference clock, on each CPU.
    pub const EACH: u64 = 0;
    /// Copied from a CPU of the same NUMA node, measured by the first of each.
    pub const SIBLING: u64 = 1;
    /// Handed over by the host.
    pub const PRESET: u64 = 2;
}

/// Timers, by number.
pub mod timer {
    /// Local APIC, periodic.
    pub const PERIODIC: u64 = 1;
    /// Local APIC, one-shot, armed again by each interrupt's taker.
    pub const ONE_SHOT: u64 = 2;
    /// Local APIC, TSC-deadline, armed on a grid.
    pub const TSC_DEADLINE: u64 = 3;
    /// Synthetic timer 0 in direct mode, periodic.
    pub const SYNTHETIC: u64 = 4;
}

/// Ways in which the hostile guest misbehaves.
pub mod hostile {
    /// Random MSR reads and writes.
    pub const MSRS: u64 = 1;
    /// Overwrites its own clock pages and goes on reading them.
    pub const PAGES: u64 = 2;
    /// Never exits.
    pub const SPIN: u64 = 3;
    /// Triple fault.
    pub const TRIPLE_FAULT: u64 = 4;
    /// Random port writes.
    pub const PORTS: u64 = 5;
    /// An invalid instruction in ring 0.
    pub const INVALID: u64 = 6;
}

/// What the guest is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// One of [`experiment`].
    pub experiment: u64,
    /// How many vCPUs take part.
    pub vcpus: u64,
    /// Which rows to run: bit `n` is row `n` in ring 3, bit `32 + n` the same in ring 0.
    pub rows: u64,
    /// Rounds of each measurement, of which the best counts.
    pub rounds: u64,
    /// Reads a round in ring 3.
    pub reads_user: u64,
    /// Reads a round in ring 0.
    pub reads_kernel: u64,
    /// Reads a round for rows that exit or trap.
    pub reads_exit: u64,
    /// Meaning depends on the experiment.
    pub argument: [u64; 7],
}

/// Words of a job, magic included.
pub const JOB_WORDS: usize = 15;

impl Job {
    /// A job without rows, for one read of everything it names.
    #[must_use]
    pub const fn new(experiment: u64, vcpus: u64) -> Self {
        Self {
            experiment,
            vcpus,
            rows: 0,
            rounds: 1,
            reads_user: 1,
            reads_kernel: 1,
            reads_exit: 1,
            argument: [0; 7],
        }
    }

    /// As it lies in guest memory.
    #[must_use]
    pub const fn to_words(&self) -> [u64; JOB_WORDS] {
        let a = &self.argument;
        [
            JOB_MAGIC,
            self.experiment,
            self.vcpus,
            self.rows,
            self.rounds,
            self.reads_user,
            self.reads_kernel,
            self.reads_exit,
            a[0],
            a[1],
            a[2],
            a[3],
            a[4],
            a[5],
            a[6],
        ]
    }

    /// From guest memory; `None` without the magic.
    #[must_use]
    pub const fn from_words(words: &[u64; JOB_WORDS]) -> Option<Self> {
        let [
            magic,
            experiment,
            vcpus,
            rows,
            rounds,
            reads_user,
            reads_kernel,
            reads_exit,
            argument @ ..,
        ] = words;
        if *magic != JOB_MAGIC {
            return None;
        }
        Some(Self {
            experiment: *experiment,
            vcpus: *vcpus,
            rows: *rows,
            rounds: *rounds,
            reads_user: *reads_user,
            reads_kernel: *reads_kernel,
            reads_exit: *reads_exit,
            argument: *argument,
        })
    }
}

/// Words in front of a slot's records: how many records, the step that runs now, the image's panic line.
pub const REPORT_HEADER_WORDS: u64 = 8;
/// Words of a record.
pub const RECORD_WORDS: u64 = 4;
/// Most records of a slot.
pub const MAX_RECORDS: u64 = (REPORT_BYTES / 8 - REPORT_HEADER_WORDS) / RECORD_WORDS;

/// One line of a vCPU's report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// What it is: a row number, or a value of [`record`].
    pub kind: u32,
    /// The ring in which it was measured.
    pub ring: u32,
    /// Values, meaning by kind.
    pub values: [u64; 3],
}

impl Record {
    /// As it lies in guest memory.
    #[must_use]
    pub const fn to_words(self) -> [u64; 4] {
        let [a, b, c] = self.values;
        // Lossless: two halves of one word.
        [(self.kind as u64) | ((self.ring as u64) << 32), a, b, c]
    }

    /// From guest memory.
    #[must_use]
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the two halves of one word"
    )]
    pub const fn from_words(words: [u64; 4]) -> Self {
        let [head, a, b, c] = words;
        Self {
            kind: head as u32,
            ring: (head >> 32) as u32,
            values: [a, b, c],
        }
    }
}

/// Rows of the clock table; their number is the bit in [`Job::rows`]. Values: total cycles of the best round, reads, cycles of the median round.
pub mod row {
    /// `rdtsc`, unordered.
    pub const RDTSC: u32 = 0;
    /// `lfence; rdtsc`.
    pub const LFENCE_RDTSC: u32 = 1;
    /// `rdtscp`.
    pub const RDTSCP: u32 = 2;
    /// The reference TSC page.
    pub const REFERENCE_TSC_PAGE: u32 = 3;
    /// The reference counter MSR.
    pub const REFERENCE_COUNTER_MSR: u32 = 4;
    /// KVM's own pvclock record.
    pub const PVCLOCK_PAGE: u32 = 5;
    /// The pvclock record that our host crate publishes.
    pub const PVCLOCK_PAGE_OURS: u32 = 6;
    /// The same behind the global last-value guard.
    pub const PVCLOCK_GUARDED: u32 = 7;
    /// The scheduler clock on the page.
    pub const SCHED_CLOCK_PAGE: u32 = 8;
    /// The scheduler clock on the MSR.
    pub const SCHED_CLOCK_MSR: u32 = 9;
    /// `rdtsc` under CR4.TSD, emulated by the guest's kernel.
    pub const TRAPPED_RDTSC: u32 = 10;
    /// Our hypercall page, called; its code is an `out`.
    pub const HYPERCALL_TIME: u32 = 11;
    /// KVM's clock-pairing hypercall.
    pub const HYPERCALL_CLOCK_PAIRING: u32 = 12;
    /// The MSR whose exit is answered at once.
    pub const NULL_MSR_EXIT: u32 = 13;
    /// Ring 3 to ring 0 and back.
    pub const TRAP_ROUND_TRIP: u32 = 14;
    /// `cpuid`.
    pub const CPUID: u32 = 15;
    /// The same behind the coarse guard.
    pub const PVCLOCK_COARSE_GUARD: u32 = 16;
    /// How many rows there are.
    pub const COUNT: u32 = 17;
}

/// Records that are no rows of the clock table.
pub mod record {
    /// Scheduler clock at its first read (ns), 0, 0. Absent if the hypervisor refused the reference page.
    pub const SCHED_CLOCK_START: u32 = 0x100;
    /// Bracketing page, MSR, page: violations, rounds, widest bracket (100 ns).
    pub const BRACKET: u32 = 0x101;
    /// Steps back across vCPUs: clock number (row, or the next constant), steps, largest in the clock's own unit.
    pub const CROSS_VCPU: u32 = 0x102;
    /// Number of the clock that is the reference page and the counter MSR in turn: no row of the table.
    pub const PAGE_AND_MSR_IN_TURN: u32 = 0x200;
    /// Reads of a clock across vCPUs: clock number as above, reads that gave a time, reads that gave none.
    pub const CROSS_VCPU_READS: u32 = 0x10E;
    /// Our pvclock less our page at one TSC, in ns, two's complement: smallest, largest, rounds.
    pub const PAGE_PVCLOCK: u32 = 0x103;
    /// Bring-up of one AP: TSC at SIPI, TSC when ready, lpj.
    pub const AP_READY: u32 = 0x104;
    /// Bring-up of all: TSC before the first SIPI, TSC after the last AP, 0.
    pub const SMP_DONE: u32 = 0x105;
    /// Ticks went into the sample array: TSC before the timer was armed, 0, 0.
    pub const SAMPLES: u32 = 0x106;
    /// Clock steps during migration: clock number (row), steps back, largest step back in the clock's own unit.
    pub const MIGRATE_STEPS: u32 = 0x107;
    /// Reads and largest gap during migration: clock number (row), reads, largest gap in the clock's own unit.
    pub const MIGRATE_GAP: u32 = 0x108;
    /// A reference page: 0 KVM's or 1 ours in the upper half and the sequence in the lower one, scale, offset.
    pub const BESIDE_PAGE: u32 = 0x10A;
    /// Bracketing of a counter by its page: which, violations, rounds.
    pub const BESIDE_COUNTER: u32 = 0x10B;
    /// Frequency MSR: which, Hz, 0.
    pub const BESIDE_FREQUENCY: u32 = 0x10C;
    /// Our page less KVM's at one TSC, in 100 ns, two's complement: smallest, largest, rounds.
    pub const BESIDE_DIFFERENCE: u32 = 0x10D;
    /// A row whose rounds are not such that all vCPUs were reading: row, 0, 0.
    pub const ROW_IN_TURNS: u32 = 0x110;
    /// MSR accesses of a hostile vCPU: accepted, refused, interrupts that came of them.
    pub const HOSTILE_ACCESSES: u32 = 0x10F;
    /// A row could not be measured: row, one of [`super::void`], detail.
    pub const ROW_VOID: u32 = 0x109;
}

/// Why a row could not be measured.
pub mod void {
    /// CR4.TSD is not enforced: `rdtsc` ran untrapped.
    pub const NOT_TRAPPED: u64 = 1;
    /// The hypervisor refused the clock's MSR.
    pub const REFUSED: u64 = 2;
    /// The clock gave no time: its record is not stable, or its page not valid.
    pub const NOT_VALID: u64 = 3;
    /// The hypercall failed; detail: its result.
    pub const HYPERCALL_FAILED: u64 = 4;
}
