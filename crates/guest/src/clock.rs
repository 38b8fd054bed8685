//! What every clock of this crate is.

use chronovisor_abi::quantity::Reading;

/// A clock that a guest can read.
///
/// A reading pairs the time with the counter value that it belongs to, so that two clocks can be compared at one instant.
pub trait GuestClock {
    /// The unit of the clock: [`Nanos`](chronovisor_abi::quantity::Nanos) or [`RefTime`](chronovisor_abi::quantity::RefTime).
    type Time: Copy + Ord;
    /// Why no reading could be given; `Infallible` for a clock that always has one.
    type Error;

    /// The time now.
    ///
    /// # Errors
    ///
    /// What the clock says: the page is not usable now, or not on this machine.
    fn read(&self) -> Result<Reading<Self::Time>, Self::Error>;

    /// The machine was suspended, hibernated or restored: what the clock remembers of the time before is dropped. To be called while no other CPU reads,
    /// before the first read. A clock that remembers nothing does nothing.
    fn resumed(&self) {}
}

impl<C: GuestClock + ?Sized> GuestClock for &C {
    type Time = C::Time;
    type Error = C::Error;

    #[inline]
    fn read(&self) -> Result<Reading<Self::Time>, Self::Error> {
        (**self).read()
    }

    fn resumed(&self) {
        (**self).resumed();
    }
}
