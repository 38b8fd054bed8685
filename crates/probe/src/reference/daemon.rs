//! Which programs discipline the clock here.

use std::fs;
use std::io;
use std::path::Path;

/// Names of time daemons as `/proc/PID/comm` shows them: at most 15 bytes.
const DAEMONS: [&str; 9] = [
    "chronyd",
    "ntpd",
    "ntpd-rs",
    "ntp-daemon",
    "systemd-timesyn",
    "openntpd",
    "ptp4l",
    "phc2sys",
    "clockbound",
];

/// The time daemons among the processes under `proc`, each once, sorted.
///
/// # Errors
///
/// If the folder cannot be listed. A process that ends while we look is passed over.
pub fn running(proc: impl AsRef<Path>) -> io::Result<Vec<String>> {
    let mut found: Vec<String> = fs::read_dir(proc)?
        .filter_map(Result::ok)
        .filter(|entry| {
            entry
                .file_name()
                .to_str()
                .is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        })
        .filter_map(|entry| fs::read_to_string(entry.path().join("comm")).ok())
        .map(|name| name.trim_end().to_owned())
        .filter(|name| DAEMONS.contains(&name.as_str()))
        .collect();
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemons_are_found_by_their_whole_name() {
        let proc = tempfile::tempdir().unwrap();
        for (pid, name) in [
            ("12", "chronyd\n"),
            ("13", "chronyd\n"),
            ("14", "my-ntpd\n"),
            ("15", "systemd-timesyn\n"),
            ("self", "ntpd\n"),
        ] {
            fs::create_dir(proc.path().join(pid)).unwrap();
            fs::write(proc.path().join(pid).join("comm"), name).unwrap();
        }
        fs::create_dir(proc.path().join("99")).unwrap();
        assert_eq!(
            running(proc.path()).unwrap(),
            ["chronyd", "systemd-timesyn"]
        );
        assert!(running(proc.path().join("none")).is_err());
    }
}
