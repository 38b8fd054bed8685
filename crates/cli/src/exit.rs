//! How the program ends.

use std::io;
use std::process::ExitCode;

/// The program's exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done; the verdict, if there is one, is no-fault or inconclusive.
    Done = 0,
    /// It failed.
    Failed = 1,
    /// A fault was found.
    Fault = 3,
    /// It cannot be done on this machine.
    NotPossible = 4,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        // 2, wrong usage, is what the argument parser ends with.
        Self::from(match exit {
            Exit::Done => 0_u8,
            Exit::Failed => 1,
            Exit::Fault => 3,
            Exit::NotPossible => 4,
        })
    }
}

/// Something that this machine lacks: ends the program with [`Exit::NotPossible`].
#[derive(Debug, thiserror::Error)]
#[error("{what}: not possible here: {missing}")]
pub(crate) struct NotPossibleHere {
    /// What was asked for.
    pub(crate) what: String,
    /// What is missing, and what would help.
    pub(crate) missing: String,
}

/// Says what went wrong, with its causes, and tells the exit code. A reader that closed our stdout is no failure.
pub(crate) fn report(error: &anyhow::Error) -> Exit {
    if error.chain().any(is_closed_pipe) {
        return Exit::Done;
    }
    anstream::eprintln!("chronovisor: {error:#}");
    if error.chain().any(|cause| cause.is::<NotPossibleHere>()) {
        Exit::NotPossible
    } else {
        Exit::Failed
    }
}

fn is_closed_pipe(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_apart_from_a_failure() {
        let missing = NotPossibleHere {
            what: "lab".into(),
            missing: "no /dev/kvm".into(),
        };
        assert_eq!(
            report(&anyhow::Error::new(missing).context("outer")),
            Exit::NotPossible
        );
        assert_eq!(report(&anyhow::anyhow!("disk on fire")), Exit::Failed);
        assert_eq!(
            report(&io::Error::from(io::ErrorKind::BrokenPipe).into()),
            Exit::Done
        );
    }
}
