//! What stands behind the guest's MSR accesses and ports.

use std::sync::Mutex;

use super::kick::Kicker;

/// The access is refused: the guest gets #GP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// Answers the exits of a guest. Called from all vCPU threads at once.
pub trait Devices: Send + Sync {
    /// The guest reads an MSR that KVM leaves to us.
    ///
    /// # Errors
    ///
    /// [`Refused`] raises #GP in the guest.
    fn read_msr(&self, vcpu: u32, index: u32) -> Result<u64, Refused>;

    /// The guest writes an MSR that KVM leaves to us.
    ///
    /// # Errors
    ///
    /// [`Refused`] raises #GP in the guest.
    fn write_msr(&self, vcpu: u32, index: u32, value: u64) -> Result<(), Refused>;

    /// The hypercall that returns the time, in units of 100 ns.
    fn time_call(&self, vcpu: u32) -> u64;

    /// A vCPU stands at a checkpoint.
    fn checkpoint(&self, _vcpu: u32) {}

    /// The calling thread runs `vcpu` from now on.
    fn started(&self, _vcpu: u32, _kicker: Kicker) {}

    /// The interrupt that `vcpu` can take now, if this is where its APIC is.
    fn pending_interrupt(&self, _vcpu: u32) -> Option<u8> {
        None
    }

    /// `vcpu` takes the interrupt `vector`.
    fn acknowledge_interrupt(&self, _vcpu: u32, _vector: u8) {}

    /// `vcpu` halted: waits for a short while for something to wake it. `false` if nothing ever can.
    fn wait_halted(&self, _vcpu: u32) -> bool {
        false
    }
}

/// Nothing there: every MSR is refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDevices;

impl Devices for NoDevices {
    fn read_msr(&self, _vcpu: u32, _index: u32) -> Result<u64, Refused> {
        Err(Refused)
    }

    fn write_msr(&self, _vcpu: u32, _index: u32, _value: u64) -> Result<(), Refused> {
        Err(Refused)
    }

    fn time_call(&self, _vcpu: u32) -> u64 {
        0
    }
}

/// Keeps the guest's last words: bounded, since the guest decides how much it says.
#[derive(Debug, Default)]
pub(super) struct SerialLog(Mutex<Vec<u8>>);

const SERIAL_LOG_BYTES: usize = 64 << 10;

impl SerialLog {
    pub(super) fn text(&self) -> String {
        let bytes = self
            .0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl std::io::Write for &SerialLog {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut log = self
            .0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let room = SERIAL_LOG_BYTES - log.len();
        log.extend_from_slice(&bytes[..bytes.len().min(room)]);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
