//! Per-CPU data: stacks, descriptor tables. A CPU finds its own by the address of its stack.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::contract::MAX_VCPUS;

/// Size of a [`Cpu`] as a power of two; the stack pointer, cut to this, is the CPU's own address.
pub const SHIFT: u32 = 16;
const CPU_BYTES: usize = 1 << SHIFT;
/// Offsets of the stacks' upper ends.
pub const KERNEL_STACK_TOP: usize = 0x4000;
const FAULT_STACK_TOP: usize = 0x6000;
const INTERRUPT_STACK_TOP: usize = 0x8000;
const USER_STACK_TOP: usize = 0xF000;

/// Selectors.
pub const KERNEL_CODE: u16 = 0x08;
const USER_DATA: u16 = 0x18 | 3;
const USER_CODE: u16 = 0x20 | 3;
const TASK: u16 = 0x28;

/// A task state segment and, behind it, an I/O bitmap that opens ports below 0x400 to ring 3. IOPL 3 alone would do on
/// real hardware, but a software-only KVM drops it; the bitmap alone would do too, but an emulated CPU does not look at the
/// bitmap of a task that was restored as busy.
const TSS_WORDS: usize = 26 + 32 + 1;
const TSS_BYTES: u32 = 104;
const TSS_LIMIT: u64 = 104 + 128;

/// One CPU's stacks, tables and counters.
#[repr(C, align(65536))]
pub struct Cpu {
    stacks: [u8; USER_STACK_TOP],
    /// This CPU's index.
    pub index: AtomicU64,
    /// Interrupts taken; the TSC at the entry of each stands in the sample array.
    pub interrupts: AtomicU64,
    /// `rdtsc` instructions emulated under CR4.TSD.
    pub emulated_rdtsc: AtomicU64,
    gdt: [u64; 7],
    tss: [u32; TSS_WORDS],
    pointer: [u16; 5],
}

const _: () = assert!(size_of::<Cpu>() == CPU_BYTES);

#[unsafe(no_mangle)]
static mut CPUS: [Cpu; MAX_VCPUS as usize] = [const {
    Cpu {
        stacks: [0; USER_STACK_TOP],
        index: AtomicU64::new(0),
        interrupts: AtomicU64::new(0),
        emulated_rdtsc: AtomicU64::new(0),
        gdt: [0; 7],
        tss: [0; TSS_WORDS],
        pointer: [0; 5],
    }
}; MAX_VCPUS as usize];

#[repr(C, align(4096))]
struct Idt([[u64; 2]; 256]);

static IDT_READY: AtomicU64 = AtomicU64::new(0);
static mut IDT: Idt = Idt([[0; 2]; 256]);

unsafe extern "C" {
    static exception_stubs: u8;
    static interrupt_stubs: u8;
}

/// The CPU that runs this, in either ring and on any of its stacks.
#[inline(always)]
pub fn this() -> &'static Cpu {
    let stack: usize;
    // SAFETY: reads RSP only.
    unsafe { asm!("mov {}, rsp", out(reg) stack, options(nomem, nostack, preserves_flags)) };
    // SAFETY: every stack lies inside its CPU's aligned block; shared access is through atomics only.
    unsafe { &*((stack & !(CPU_BYTES - 1)) as *const Cpu) }
}

/// Which stack a handler gets.
#[derive(Clone, Copy)]
enum Stack {
    /// The ring-0 stack on a change of ring, else the running one.
    Plain = 0,
    Fault = 1,
    Interrupt = 2,
}

fn idt_gate(handler: u64, stack: Stack) -> [u64; 2] {
    // Interrupt gate, DPL 0: exceptions pass from ring 3 all the same, software interrupts are not used.
    let low = (handler & 0xFFFF)
        | (u64::from(KERNEL_CODE) << 16)
        | ((stack as u64) << 32)
        | (0x8E << 40)
        | ((handler >> 16 & 0xFFFF) << 48);
    [low, handler >> 32]
}

/// Loads this CPU's tables. `index` is its place in the array whose stack it already runs on.
pub fn init(index: u64) {
    // SAFETY: each CPU touches its own entry only, before it takes its first exception; CPU 0 alone fills the shared IDT,
    // and no other CPU goes on before that.
    unsafe {
        let cpu = &raw mut CPUS[index as usize];
        let base = cpu as u64;
        (*cpu).index.store(index, Ordering::Relaxed);
        let tss = &raw mut (*cpu).tss;
        let put = |word: usize, value: u64| {
            (*tss)[word] = value as u32;
            (*tss)[word + 1] = (value >> 32) as u32;
        };
        put(1, base + KERNEL_STACK_TOP as u64);
        put(9, base + FAULT_STACK_TOP as u64);
        put(11, base + INTERRUPT_STACK_TOP as u64);
        (*tss)[25] = TSS_BYTES << 16;
        (*tss)[TSS_WORDS - 1] = u32::MAX;
        let tss_base = tss as u64;
        (*cpu).gdt = [
            0,
            0x00AF_9B00_0000_FFFF,
            0x00CF_9300_0000_FFFF,
            0x00CF_F300_0000_FFFF,
            0x00AF_FB00_0000_FFFF,
            TSS_LIMIT
                | ((tss_base & 0xFF_FFFF) << 16)
                | (0x89 << 40)
                | ((tss_base >> 24 & 0xFF) << 56),
            tss_base >> 32,
        ];
        let pointer = &raw mut (*cpu).pointer;
        let load = |limit: u16, address: u64| {
            (*pointer)[0] = limit;
            for word in 0..4 {
                (*pointer)[1 + word] = (address >> (16 * word)) as u16;
            }
        };
        load(55, &raw const (*cpu).gdt as u64);
        asm!("lgdt [{}]", in(reg) pointer, options(nostack, preserves_flags));
        if index == 0 {
            fill_idt();
            IDT_READY.store(1, Ordering::Release);
        }
        // A VMM may start all CPUs at once.
        while IDT_READY.load(Ordering::Acquire) == 0 {
            core::hint::spin_loop();
        }
        load(4095, &raw const IDT as u64);
        asm!("lidt [{}]", in(reg) pointer, options(nostack, preserves_flags));
        asm!("ltr {:x}", in(reg) TASK, options(nostack, preserves_flags));
        asm!("mov ss, {:x}", in(reg) 0x10_u16, options(nostack, preserves_flags));
    }
}

/// # Safety
///
/// Only CPU 0, while it runs alone.
unsafe fn fill_idt() {
    const INVALID_OPCODE: usize = 6;
    // SAFETY: alone, by this function's contract; a stub is 16 bytes long.
    unsafe {
        let idt = &raw mut IDT.0;
        for vector in 0..32 {
            let stack = if vector == INVALID_OPCODE {
                Stack::Plain
            } else {
                Stack::Fault
            };
            (*idt)[vector] = idt_gate(
                &raw const exception_stubs as u64 + 16 * vector as u64,
                stack,
            );
        }
        for vector in 32..256 {
            (*idt)[vector] = idt_gate(
                &raw const interrupt_stubs as u64 + 16 * (vector as u64 - 32),
                Stack::Interrupt,
            );
        }
    }
}

/// Leaves ring 0 for good: `program` runs in ring 3 with interrupts on.
pub fn enter_user(program: extern "C" fn() -> !) -> ! {
    const IOPL3_INTERRUPTS_ON: u64 = 0x3202;
    let stack = core::ptr::from_ref(this()) as u64 + USER_STACK_TOP as u64 - 8;
    // SAFETY: the selectors are those of `init`; the stack is this CPU's own and misaligned by 8 as after a call.
    unsafe {
        asm!(
            "push {ss}", "push {rsp3}", "push {flags}", "push {cs}", "push {rip}", "iretq",
            ss = in(reg) u64::from(USER_DATA),
            rsp3 = in(reg) stack,
            flags = in(reg) IOPL3_INTERRUPTS_ON,
            cs = in(reg) u64::from(USER_CODE),
            rip = in(reg) program as usize,
            options(noreturn)
        )
    }
}
