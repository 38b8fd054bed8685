//! The image boots by PVH on a VMM that is not ours: QEMU's software emulation, which offers no clock at all.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use chronovisor_lab::image::ELF;

/// `isa-debug-exit` makes (status << 1) | 1 of the status 0x10.
const QEMU_EXIT_OF_DONE: i32 = 33;

#[test]
fn the_image_boots_by_pvh_and_speaks_tap() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image.elf");
    let serial = directory.path().join("serial");
    std::fs::write(&image, ELF).unwrap();
    let started = Command::new("qemu-system-x86_64")
        .args([
            "-accel",
            "tcg",
            "-cpu",
            "max",
            "-m",
            "256",
            "-nodefaults",
            "-display",
            "none",
            "-no-reboot",
        ])
        .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4", "-serial"])
        .arg(format!("file:{}", serial.display()))
        .arg("-kernel")
        .arg(&image)
        .stdin(Stdio::null())
        .spawn();
    let mut qemu = match started {
        Ok(qemu) => qemu,
        Err(error) => {
            println!("skipped: no qemu-system-x86_64 ({error})");
            return;
        }
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    let status = loop {
        if let Some(status) = qemu.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            qemu.kill().unwrap();
            panic!(
                "QEMU hangs: {}",
                std::fs::read_to_string(&serial).unwrap_or_default()
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let tap = std::fs::read_to_string(&serial).unwrap();
    assert_eq!(status.code(), Some(QEMU_EXIT_OF_DONE), "{tap}");
    assert!(tap.starts_with("TAP version 13\nok 1 "), "{tap}");
    assert!(
        tap.contains("\n1..15\n") && tap.ends_with("# failed 0\n"),
        "{tap}"
    );
}
