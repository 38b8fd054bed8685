//! Hands the linker script to the linker.

fn main() {
    let here = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    println!("cargo::rerun-if-changed=link.ld");
    println!("cargo::rerun-if-changed=src/boot.s");
    for argument in [
        "-nostartfiles",
        "-nostdlib",
        "-static",
        "-no-pie",
        "-Wl,--build-id=none",
    ] {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
    println!("cargo::rustc-link-arg-bins=-T{here}/link.ld");
}
