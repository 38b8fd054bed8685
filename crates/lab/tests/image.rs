//! The guest image holds only instructions that a software-only KVM can interpret in ring 0.
#![allow(clippy::unwrap_used, reason = "a test may")]

use chronovisor_lab::image::ELF;
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, Register};

/// Address and bytes of the section of compiled code. Plain ELF64, little endian.
fn compiled_code() -> (u64, &'static [u8]) {
    let half = |at: usize| usize::from(u16::from_le_bytes(ELF[at..at + 2].try_into().unwrap()));
    let word = |at: usize| {
        usize::try_from(u32::from_le_bytes(ELF[at..at + 4].try_into().unwrap())).unwrap()
    };
    let long = |at: usize| {
        usize::try_from(u64::from_le_bytes(ELF[at..at + 8].try_into().unwrap())).unwrap()
    };
    let header = |index: usize| long(0x28) + index * half(0x3A);
    let names = long(header(half(0x3E)) + 0x18);
    let section = (0..half(0x3C))
        .map(header)
        .find(|section| ELF[names + word(*section)..].starts_with(b".text\0"))
        .expect("the image has a .text");
    let (address, offset, size) = (
        long(section + 0x10),
        long(section + 0x18),
        long(section + 0x20),
    );
    (u64::try_from(address).unwrap(), &ELF[offset..offset + size])
}

fn is_vector(register: Register) -> bool {
    register.is_xmm()
        || register.is_ymm()
        || register.is_zmm()
        || register.is_mm()
        || register.is_st()
}

fn is_uninterpretable(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Popcnt
        || (0..instruction.op_count()).any(|operand| is_vector(instruction.op_register(operand)))
}

#[test]
fn no_instruction_uses_a_vector_register_or_popcnt() {
    let (address, bytes) = compiled_code();
    let mut decoded = 0;
    for instruction in Decoder::with_ip(64, bytes, address, DecoderOptions::NONE) {
        assert!(
            !is_uninterpretable(&instruction),
            "{:#x}: {instruction}",
            instruction.ip()
        );
        decoded += 1;
    }
    assert!(
        decoded > 1000,
        "only {decoded} instructions: is this the image?"
    );
}

#[test]
fn the_check_knows_what_it_looks_for() {
    for (bytes, found) in [
        (&[0x0F_u8, 0x57, 0xC0][..], true),      // xorps xmm0, xmm0
        (&[0xF3, 0x48, 0x0F, 0xB8, 0xC1], true), // popcnt rax, rcx
        (&[0x0F, 0x31], false),                  // rdtsc
    ] {
        let instruction = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
        assert_ne!(instruction.code(), Code::INVALID);
        assert_eq!(is_uninterpretable(&instruction), found, "{instruction}");
    }
}
