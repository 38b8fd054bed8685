//! The guest image holds only instructions that a software-only KVM can interpret in ring 0.
//!
//! What ring 3 alone runs is run by the CPU itself, and may use `rdtscp` besides. Which code that is follows from the image: whatever
//! ring 0's ways in can reach by branches and by addresses of code is ring 0's.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::collections::{BTreeMap, BTreeSet};

use chronovisor_lab::image::ELF;
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

/// Plain ELF64, little endian, with its symbols.
struct Image {
    /// Names by address.
    symbols: BTreeMap<u64, &'static str>,
    sections: Vec<Section>,
}

#[derive(Clone, Copy)]
struct Section {
    name: &'static str,
    address: u64,
    bytes: &'static [u8],
    is_code: bool,
}

fn half(at: usize) -> usize {
    usize::from(u16::from_le_bytes(ELF[at..at + 2].try_into().unwrap()))
}

fn word(at: usize) -> usize {
    usize::try_from(u32::from_le_bytes(ELF[at..at + 4].try_into().unwrap())).unwrap()
}

fn long(at: usize) -> u64 {
    u64::from_le_bytes(ELF[at..at + 8].try_into().unwrap())
}

fn size(at: usize) -> usize {
    usize::try_from(long(at)).unwrap()
}

fn text(at: usize) -> &'static str {
    let end = ELF[at..].iter().position(|byte| *byte == 0).unwrap();
    std::str::from_utf8(&ELF[at..at + end]).unwrap()
}

impl Image {
    fn read() -> Self {
        const SYMBOL_TABLE: usize = 2;
        const NO_BITS: usize = 8;
        const EXECUTABLE: u64 = 4;
        const SYMBOL_BYTES: usize = 24;
        let header = |index: usize| size(0x28) + index * half(0x3A);
        let names = size(header(half(0x3E)) + 0x18);
        let (mut symbols, mut sections) = (BTreeMap::new(), Vec::new());
        for at in (0..half(0x3C)).map(header) {
            let kind = word(at + 4);
            let start = size(at + 0x18);
            let bytes = if kind == NO_BITS {
                &[]
            } else {
                &ELF[start..start + size(at + 0x20)]
            };
            sections.push(Section {
                name: text(names + word(at)),
                address: long(at + 0x10),
                bytes,
                is_code: long(at + 8) & EXECUTABLE != 0,
            });
            if kind == SYMBOL_TABLE {
                let strings = size(header(word(at + 0x28)) + 0x18);
                for entry in (start..start + bytes.len()).step_by(SYMBOL_BYTES) {
                    symbols.insert(long(entry + 8), text(strings + word(entry)));
                }
            }
        }
        Self { symbols, sections }
    }

    fn section(&self, name: &str) -> Section {
        *self
            .sections
            .iter()
            .find(|section| section.name == name)
            .unwrap()
    }

    fn address(&self, name: &str) -> u64 {
        let found = self.symbols.iter().find(|(_, symbol)| **symbol == name);
        *found.unwrap_or_else(|| panic!("no symbol {name}")).0
    }

    /// The instructions from `start` to `end`, in `bits`-bit code.
    fn decode(&self, start: u64, end: u64, bits: u32) -> Vec<Instruction> {
        let section = self
            .sections
            .iter()
            .find(|section| {
                section.is_code
                    && (section.address..section.address + length(section.bytes)).contains(&start)
            })
            .unwrap();
        let offset = |address: u64| usize::try_from(address - section.address).unwrap();
        let bytes = &section.bytes[offset(start)..offset(end)];
        Decoder::with_ip(bits, bytes, start, DecoderOptions::NONE)
            .into_iter()
            .collect()
    }
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap()
}

fn is_vector(register: Register) -> bool {
    register.is_xmm()
        || register.is_ymm()
        || register.is_zmm()
        || register.is_mm()
        || register.is_st()
}

/// In ring 0; and none of it is of use to ring 3.
fn is_uninterpretable(instruction: &Instruction) -> bool {
    use Mnemonic::{Cmpxchg16b, Int, Popcnt, Xrstor, Xrstor64, Xrstors, Xrstors64};
    matches!(
        instruction.mnemonic(),
        Popcnt | Cmpxchg16b | Int | Xrstor | Xrstor64 | Xrstors | Xrstors64
    ) || (0..instruction.op_count()).any(|operand| is_vector(instruction.op_register(operand)))
}

/// Where an instruction may lead to: its branch target, or an address that it takes. `starts` are those of code; a constant that is
/// none of them is no address.
fn leads_to(instruction: &Instruction, starts: &[u64]) -> Vec<u64> {
    let mut taken = Vec::new();
    if instruction.is_ip_rel_memory_operand() {
        taken.push(instruction.ip_rel_memory_address());
    }
    for operand in 0..instruction.op_count() {
        if matches!(
            instruction.op_kind(operand),
            OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64
        ) {
            taken.push(instruction.immediate(operand));
        }
    }
    taken.retain(|address| starts.contains(address));
    let branch = instruction.near_branch_target();
    taken.extend((branch != 0).then_some(branch));
    taken
}

/// The compiled code and the stubs; and by hand what stands between data and 32-bit code that no interpreter meets: QEMU runs PVH.
#[test]
fn no_instruction_is_beyond_the_interpreter() {
    let image = Image::read();
    let text = image.section(".text");
    let code: Vec<_> = image
        .sections
        .iter()
        .filter(|section| section.is_code)
        .map(|section| section.name)
        .collect();
    assert_eq!(code, [".boot", ".text"], "is there code elsewhere?");
    let mut instructions = image.decode(text.address, text.address + length(text.bytes), 64);
    for (start, end, bits) in [
        ("entry64", "entry_pvh", 64),
        ("trampoline_start", "trampoline32", 16),
        ("trampoline32", "trampoline64", 32),
        ("trampoline64", "trampoline_gdt", 64),
    ] {
        let part = image.decode(image.address(start), image.address(end), bits);
        assert!(part.len() >= 4, "{start}");
        instructions.extend(part);
    }
    for instruction in &instructions {
        assert!(
            !is_uninterpretable(instruction),
            "{:#x}: {instruction}",
            instruction.ip()
        );
    }
    assert!(
        instructions.len() > 1000,
        "only {} instructions: is this the image?",
        instructions.len()
    );
}

/// The one place is the row that asks what `rdtscp` costs there: the lab says that this KVM cannot tell.
#[test]
fn ring_0_uses_rdtscp_in_one_place() {
    /// Where ring 0 hands over to ring 3.
    const RING_3: &str = "experiment3run17h";
    let image = Image::read();
    let text = image.section(".text");
    let code = text.address..text.address + length(text.bytes);
    let starts: Vec<u64> = image
        .symbols
        .range(code.clone())
        .map(|(at, _)| *at)
        .collect();
    let function = |address: u64| {
        let next = starts.partition_point(|start| *start <= address);
        let end = starts.get(next).copied().unwrap_or(code.end);
        (starts[next - 1], end)
    };
    let is_way_in = |name: &str| {
        [
            "boot",
            "exception",
            "interrupt",
            "exception_stubs",
            "interrupt_stubs",
        ]
        .contains(&name)
            || name.contains("in_ring05enter17h")
    };
    let mut left: Vec<u64> = image
        .symbols
        .range(code.clone())
        .filter(|(_, name)| is_way_in(name))
        .map(|(at, _)| *at)
        .collect();
    assert!(left.len() > 20, "only {} ways into ring 0", left.len());
    let (mut seen, mut with_rdtscp) = (BTreeSet::new(), Vec::new());
    while let Some(address) = left.pop() {
        let (start, end) = function(address);
        let name = image.symbols[&start];
        if name.contains(RING_3) || !seen.insert(start) {
            continue;
        }
        let instructions = image.decode(start, end, 64);
        if instructions
            .iter()
            .any(|instruction| instruction.mnemonic() == Mnemonic::Rdtscp)
        {
            with_rdtscp.push(name);
        }
        let targets = instructions
            .iter()
            .flat_map(|instruction| leads_to(instruction, &starts));
        left.extend(targets.filter(|target| code.contains(target)));
    }
    assert!(
        with_rdtscp.len() == 1 && with_rdtscp[0].contains("in_ring05enter"),
        "{with_rdtscp:?}"
    );
    let all = image.decode(code.start, code.end, 64);
    let everywhere = all
        .iter()
        .filter(|instruction| instruction.mnemonic() == Mnemonic::Rdtscp);
    assert!(everywhere.count() > 10, "ring 3 reads by rdtscp");
    assert!(
        seen.len() < starts.len(),
        "all code counts as ring 0's: nothing was told apart"
    );
}

#[test]
fn the_check_knows_what_it_looks_for() {
    for (bytes, found) in [
        (&[0x0F_u8, 0x57, 0xC0][..], true),      // xorps xmm0, xmm0
        (&[0xF3, 0x48, 0x0F, 0xB8, 0xC1], true), // popcnt rax, rcx
        (&[0xF0, 0x48, 0x0F, 0xC7, 0x0F], true), // lock cmpxchg16b [rdi]
        (&[0x0F, 0xAE, 0x2F], true),             // xrstor [rdi]
        (&[0xCD, 0x80], true),                   // int 0x80
        (&[0x0F, 0x31], false),                  // rdtsc
        (&[0xF0, 0x0F, 0xC7, 0x0F], false),      // lock cmpxchg8b [rdi]
    ] {
        let instruction = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
        assert_ne!(instruction.code(), Code::INVALID);
        assert_eq!(is_uninterpretable(&instruction), found, "{instruction}");
    }
}
