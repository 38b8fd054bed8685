//! Builds the guest image with an inner cargo, into a target folder of its own under `OUT_DIR`.
//!
//! The image is a workspace of its own with its own flags (`guest-image/.cargo/config.toml`), so whatever the outer build
//! was given (`+crt-static`, `--cfg loom`, clippy's wrapper, profile settings) must not leak in.

use std::path::PathBuf;
use std::process::Command;

const LEAKS: [&str; 9] = [
    "CARGO_ENCODED_RUSTFLAGS",
    "RUSTFLAGS",
    "CARGO_BUILD_RUSTFLAGS",
    "CARGO_BUILD_TARGET",
    "CARGO_TARGET_DIR",
    "CARGO_BUILD_TARGET_DIR",
    "RUSTC_WORKSPACE_WRAPPER",
    "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS",
    "CLIPPY_ARGS",
];

fn main() {
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("../..");
    let image = root.join("guest-image");
    let target = PathBuf::from(variable("OUT_DIR")).join("guest-image");

    for watched in [
        "guest-image/src",
        "guest-image/Cargo.toml",
        "guest-image/Cargo.lock",
        "guest-image/link.ld",
        "guest-image/build.rs",
        "guest-image/.cargo/config.toml",
        "crates/lab/src/contract.rs",
        "crates/abi/src",
        "crates/guest/src",
    ] {
        println!("cargo::rerun-if-changed={}", root.join(watched).display());
    }

    let mut cargo = Command::new(variable("CARGO"));
    cargo
        .args([
            "build",
            "--release",
            "--target",
            "x86_64-unknown-linux-gnu",
            "--target-dir",
        ])
        .arg(&target)
        .current_dir(&image);
    let profiles = std::env::vars_os().map(|(name, _)| name);
    let profiles = profiles.filter(|name| name.to_string_lossy().starts_with("CARGO_PROFILE_"));
    for name in profiles.chain(LEAKS.map(Into::into)) {
        cargo.env_remove(name);
    }
    let built = cargo
        .output()
        .expect("the cargo that runs this can be run again");
    assert!(
        built.status.success(),
        "the guest image does not build; try `cargo build --release` in {}:\n{}",
        image.display(),
        String::from_utf8_lossy(&built.stderr)
    );
    let elf = target.join("x86_64-unknown-linux-gnu/release/chronovisor-guest-image");
    println!("cargo::rustc-env=CHRONOVISOR_GUEST_IMAGE={}", elf.display());
}
