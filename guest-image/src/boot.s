# Ways in: entry64 (the lab's VMM, and everything below, ends here), entry_pvh (32-bit, PVH), trampoline (16-bit, SIPI).
# AT&T syntax: LLVM's Intel dialect has no far jump.

    .section .note.pvh, "a", @note
    .align 4
    .long 4, 4, 18
    .asciz "Xen"
    .long entry_pvh

# rdi = CPU index. The stack of CPU i is the ring-0 stack inside CPUS[i].
    .section .text.boot, "ax"
    .code64
    .global entry64
entry64:
    cld
    movq %rdi, %rax
    shlq $CPU_SHIFT, %rax
    leaq CPUS(%rax), %rsp
    addq $KERNEL_STACK_TOP, %rsp
    xorl %ebp, %ebp
    call boot
    ud2

# ebx = start info. Identity-map the first 4 GiB with 2 MiB pages, user access allowed, and go to long mode.
    .code32
entry_pvh:
    cld
    movl $pvh_pml4, %edi
    movl $pvh_pdpt + 7, (%edi)
    movl $pvh_pdpt, %edi
    movl $pvh_pd + 7, (%edi)
    movl $pvh_pd + 0x1007, 8(%edi)
    movl $pvh_pd + 0x2007, 16(%edi)
    movl $pvh_pd + 0x3007, 24(%edi)
    movl $pvh_pd, %edi
    movl $0x87, %eax
    movl $2048, %ecx
1:  movl %eax, (%edi)
    addl $0x200000, %eax
    addl $8, %edi
    decl %ecx
    jnz 1b
    movl %cr4, %eax
    orl $0x20, %eax
    movl %eax, %cr4
    movl $pvh_pml4, %eax
    movl %eax, %cr3
    movl $0xC0000080, %ecx
    rdmsr
    orl $0x100, %eax
    wrmsr
    movl %cr0, %eax
    orl $0x80000000, %eax
    movl %eax, %cr0
    lgdt pvh_gdtr
    ljmpl $0x08, $pvh64
    .code64
pvh64:
    xorl %eax, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    movl $1, BOOTED_BY_PVH
    xorl %edi, %edi
    jmp entry64

    .align 8
pvh_gdt:
    .quad 0, 0x00AF9A000000FFFF
pvh_gdtr:
    .word 15
    .long pvh_gdt
    .long 0

# Copied to TRAMPOLINE (below 1 MiB) and entered in real mode with CS = TRAMPOLINE >> 4, IP = 0.
    .align 16
    .global trampoline_start, trampoline_end, trampoline_cr3, trampoline_next
    .code16
trampoline_start:
    cli
    cld
    xorw %ax, %ax
    movw %ax, %ds
    lgdtl TRAMPOLINE + trampoline_gdtr - trampoline_start
    movl %cr0, %eax
    orl $1, %eax
    movl %eax, %cr0
    ljmpl $0x08, $(TRAMPOLINE + trampoline32 - trampoline_start)
    .code32
trampoline32:
    movw $0x10, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    movl %cr4, %eax
    orl $0x20, %eax
    movl %eax, %cr4
    movl TRAMPOLINE + trampoline_cr3 - trampoline_start, %eax
    movl %eax, %cr3
    movl $0xC0000080, %ecx
    rdmsr
    orl $0x100, %eax
    wrmsr
    movl %cr0, %eax
    orl $0x80000000, %eax
    movl %eax, %cr0
    ljmpl $0x18, $(TRAMPOLINE + trampoline64 - trampoline_start)
    .code64
trampoline64:
    movl $1, %edi
    lock xaddl %edi, TRAMPOLINE + trampoline_next - trampoline_start
    movq $entry64, %rax
    jmp *%rax
    .align 8
trampoline_gdt:
    .quad 0, 0x00CF9A000000FFFF, 0x00CF92000000FFFF, 0x00AF9A000000FFFF
trampoline_gdtr:
    .word 31
    .long TRAMPOLINE + trampoline_gdt - trampoline_start
    .align 8
trampoline_cr3:
    .quad 0
trampoline_next:
    .long 1
    .long 0
trampoline_end:

# All that follows is 64-bit code without data: it lies with the compiled code, and is disassembled with it.
    .section .text.ring0, "ax"

# Exceptions and interrupts. Each stub leaves the vector and, above it, the error code or entry TSC under the saved registers.
    .macro save
    pushq %rax
    pushq %rcx
    pushq %rdx
    pushq %rbx
    pushq %rbp
    pushq %rsi
    pushq %rdi
    pushq %r8
    pushq %r9
    pushq %r10
    pushq %r11
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    .endm
    .macro restore
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %r11
    popq %r10
    popq %r9
    popq %r8
    popq %rdi
    popq %rsi
    popq %rbp
    popq %rbx
    popq %rdx
    popq %rcx
    popq %rax
    addq $16, %rsp
    iretq
    .endm

    .global exception_stubs, interrupt_stubs
    .align 16
exception_stubs:
    .set vector, 0
    .rept 32
    .align 16
    .if vector != 8 && vector != 10 && vector != 11 && vector != 12 && vector != 13 && vector != 14 && vector != 17 && vector != 21 && vector != 29 && vector != 30
    pushq $0
    .endif
    pushq $vector
    jmp exception_common
    .set vector, vector + 1
    .endr
exception_common:
    save
    cld
    movq %rsp, %rdi
    call exception
    restore

    .align 16
interrupt_stubs:
    .set vector, 32
    .rept 224
    .align 16
    pushq $0
    pushq $vector
    jmp interrupt_common
    .set vector, vector + 1
    .endr
# The counter is read before anything else: in an interpreted ring 0 each push costs a quarter of a microsecond.
interrupt_common:
    pushq %rax
    pushq %rdx
    rdtsc
    shlq $32, %rdx
    orq %rdx, %rax
    movq %rax, 24(%rsp)
    popq %rdx
    popq %rax
    save
    cld
    movq %rsp, %rdi
    call interrupt
    restore

# The call gate, in the plainest form: operation in rax, arguments in rdi and rsi, result in rax. The handler steps over ud2.
    .global gate_call
gate_call:
    movq %rdx, %rax
    ud2
    ret

# Waits for an interrupt. An emulated CPU may forget, at an exit between the two, that STI holds interrupts back for one more
# instruction (QEMU before 9.1 does, at VMRUN): the interrupt then comes before HLT, and its handler steps over HLT.
    .global wait_for_interrupt, wait_for_interrupt_hlt
wait_for_interrupt:
    sti
wait_for_interrupt_hlt:
    hlt
    cli
    ret

# MSR accesses that may fault: rax = 0 done, 1 refused.
    .global rdmsr_checked, wrmsr_checked, rdmsr_checked_at, wrmsr_checked_at, msr_refused
rdmsr_checked:
    movl %edi, %ecx
rdmsr_checked_at:
    rdmsr
    shlq $32, %rdx
    orq %rdx, %rax
    movq %rax, (%rsi)
    xorl %eax, %eax
    ret
wrmsr_checked:
    movl %edi, %ecx
    movq %rsi, %rax
    movq %rsi, %rdx
    shrq $32, %rdx
wrmsr_checked_at:
    wrmsr
    xorl %eax, %eax
    ret
msr_refused:
    movl $1, %eax
    ret

# What the compiler takes for granted and this target's runtime does not bring for a program without libc.
    .global memcpy, memmove, memset, memcmp, bcmp
memcpy:
    movq %rdi, %rax
    movq %rdx, %rcx
    rep movsb
    ret
memmove:
    movq %rdi, %rax
    movq %rdx, %rcx
    movq %rdi, %r8
    subq %rsi, %r8
    cmpq %rdx, %r8
    jb 1f
    rep movsb
    ret
1:  leaq -1(%rdi, %rdx), %rdi
    leaq -1(%rsi, %rdx), %rsi
    std
    rep movsb
    cld
    ret
memset:
    movq %rdi, %r8
    movl %esi, %eax
    movq %rdx, %rcx
    rep stosb
    movq %r8, %rax
    ret
memcmp:
bcmp:
    xorl %eax, %eax
    testq %rdx, %rdx
    jz 2f
1:  movzbl (%rdi), %eax
    movzbl (%rsi), %ecx
    subl %ecx, %eax
    jnz 2f
    incq %rdi
    incq %rsi
    decq %rdx
    jnz 1b
2:  ret

    .section .bss
    .align 4096
pvh_pml4:
    .skip 4096
pvh_pdpt:
    .skip 4096
pvh_pd:
    .skip 16384
