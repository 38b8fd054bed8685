//! Model-specific registers, where the kernel lets this process read them: `/dev/cpu/N/msr` (root, and the module `msr`).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use chronovisor_abi::msr::Msr;

/// Register `msr` of the CPU whose device is `device`.
///
/// # Errors
///
/// Why it cannot be read. A register that the hypervisor does not have is an input/output error.
pub fn read(device: &Path, msr: Msr) -> Result<u64, String> {
    let mut value = [0; 8];
    File::open(device)
        .and_then(|file| file.read_exact_at(&mut value, u64::from(msr.0)))
        .map_err(|why| format!("{}: register {msr}: {why}", device.display()))?;
    Ok(u64::from_le_bytes(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_register_lies_at_its_number() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file()
            .write_all_at(&2_600_000_000_u64.to_le_bytes(), 0x4000_0022)
            .unwrap();
        assert_eq!(read(file.path(), Msr::HV_TSC_FREQUENCY), Ok(2_600_000_000));
        let why = read(file.path(), Msr::HV_APIC_FREQUENCY).unwrap_err();
        assert!(why.contains("register 0x40000023"), "{why}");
    }
}
