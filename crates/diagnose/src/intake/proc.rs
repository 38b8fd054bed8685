//! The text files of `/proc` and `/sys`.

use crate::evidence::{CpuLine, CpuStat, CpuTicks, InterruptCapture, InterruptRow};

/// Flags of a CPU that matter to clocks.
const FLAGS: [&str; 12] = [
    "tsc",
    "constant_tsc",
    "nonstop_tsc",
    "tsc_reliable",
    "tsc_known_freq",
    "tsc_adjust",
    "tsc_scale",
    "tsc_deadline_timer",
    "rdtscp",
    "arat",
    "hypervisor",
    "nonstop_tsc_s3",
];

/// Rows of `/proc/interrupts` that matter: timers, and interrupts that show that a CPU lives.
const ROWS: [&str; 11] = [
    "0", "LOC", "HVS", "HRE", "HYP", "RES", "CAL", "TLB", "IWI", "TIM", "NMI",
];

/// CPUs that are kept.
const MOST_CPUS: usize = 8192;

/// The words of a text, split at blanks. Sources are compared as whole words: `hyperv_clocksource_tsc_page` is not `tsc`.
#[must_use]
pub fn words(text: &str) -> Vec<String> {
    text.split_ascii_whitespace()
        .take(64)
        .map(|word| word.chars().take(64).collect())
        .collect()
}

/// The lines of `/proc/cpuinfo` that matter.
#[must_use]
pub fn cpuinfo(text: &str) -> Vec<CpuLine> {
    let mut cpus: Vec<CpuLine> = Vec::new();
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else {
            continue;
        };
        let (key, value) = (key.trim(), value.trim());
        if key == "processor" {
            if cpus.len() == MOST_CPUS {
                break;
            }
            cpus.push(CpuLine {
                processor: value
                    .parse()
                    .unwrap_or_else(|_| u32::try_from(cpus.len()).unwrap_or(u32::MAX)),
                ..CpuLine::default()
            });
            continue;
        }
        if !matches!(
            key,
            "vendor_id" | "model name" | "cpu MHz" | "bogomips" | "physical id" | "flags"
        ) {
            continue;
        }
        if cpus.is_empty() {
            cpus.push(CpuLine::default());
        }
        let Some(cpu) = cpus.last_mut() else { break };
        match key {
            "vendor_id" => cpu.vendor = Some(value.chars().take(64).collect()),
            "model name" => cpu.model = Some(value.chars().take(96).collect()),
            "cpu MHz" => cpu.khz = scaled(value, 3),
            "bogomips" => cpu.bogomips_hundredths = scaled(value, 2),
            "physical id" => cpu.package = value.parse().ok(),
            _ => {
                cpu.flags = value
                    .split_ascii_whitespace()
                    .filter(|flag| FLAGS.contains(flag))
                    .map(str::to_owned)
                    .collect();
            }
        }
    }
    cpus
}

/// A decimal number times a power of ten, without a float.
pub(super) fn scaled(text: &str, places: u32) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole: u64 = whole.parse().ok()?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let mut value = whole;
    let mut digits = fraction.bytes();
    for _ in 0..places {
        let digit = digits.next().map_or(0, |byte| byte - b'0');
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(value)
}

/// The `cpu` lines of `/proc/stat`.
///
/// # Errors
///
/// A text without any such line, or the first line with a number that does not fit.
pub fn stat(text: &str) -> Result<CpuStat, String> {
    let mut stat = CpuStat::default();
    for (number, line) in text.lines().enumerate() {
        let Some(rest) = line.strip_prefix("cpu") else {
            continue;
        };
        let (index, numbers) = rest.split_once([' ', '\t']).unwrap_or((rest, ""));
        let ticks = ticks(numbers)
            .ok_or_else(|| format!("line {}: not the numbers of a cpu line", number + 1))?;
        if index.is_empty() {
            stat.total = Some(ticks);
        } else if let Ok(index) = index.parse()
            && stat.cpus.len() < MOST_CPUS
        {
            stat.cpus.push((index, ticks));
        }
    }
    if stat.total.is_none() && stat.cpus.is_empty() {
        return Err("no cpu line in it".to_owned());
    }
    Ok(stat)
}

fn ticks(numbers: &str) -> Option<CpuTicks> {
    let mut values = numbers.split_ascii_whitespace().map(str::parse::<u64>);
    let mut next = || match values.next() {
        None => Some(0),
        Some(value) => value.ok(),
    };
    Some(CpuTicks {
        user: next()?,
        nice: next()?,
        system: next()?,
        idle: next()?,
        iowait: next()?,
        irq: next()?,
        softirq: next()?,
        steal: next()?,
    })
}

/// The rows of `/proc/interrupts` that matter.
///
/// # Errors
///
/// A text without the line that names the CPUs.
pub fn interrupts(text: &str) -> Result<InterruptCapture, String> {
    let mut lines = text.lines();
    let cpus: Vec<u32> = lines
        .by_ref()
        .find(|line| line.contains("CPU"))
        .into_iter()
        .flat_map(str::split_ascii_whitespace)
        .filter_map(|word| word.strip_prefix("CPU")?.parse().ok())
        .take(MOST_CPUS)
        .collect();
    if cpus.is_empty() {
        return Err("no line that names the CPUs".to_owned());
    }
    let mut rows = Vec::new();
    for line in lines {
        let Some((name, rest)) = line.split_once(':') else {
            continue;
        };
        let name = name.trim();
        if !ROWS.contains(&name) {
            continue;
        }
        let mut words = rest.split_ascii_whitespace();
        let counts: Vec<u64> = words
            .by_ref()
            .take(cpus.len())
            .map_while(|word| word.parse().ok())
            .collect();
        rows.push(InterruptRow {
            name: name.to_owned(),
            counts,
            text: words.take(6).collect::<Vec<_>>().join(" "),
        });
    }
    Ok(InterruptCapture { cpus, rows })
}

#[cfg(test)]
mod tests {
    use super::{cpuinfo, interrupts, scaled, stat, words};

    #[test]
    fn d75_sources_are_whole_words() {
        let list = words("hyperv_clocksource_tsc_page tsc-early kvm-clock \n");
        assert!(!list.iter().any(|word| word == "tsc"));
        assert_eq!(list.len(), 3);
    }

    #[test]
    fn cpu_lines_keep_what_matters() {
        let cpus = cpuinfo(
            "processor\t: 0\nserial\t: 12345\ncpu MHz\t\t: 2593.906\nbogomips\t: 5187.81\nflags\t\t: fpu constant_tsc sse hypervisor\n\nprocessor\t: 7\n",
        );
        assert_eq!(cpus.len(), 2);
        assert_eq!(cpus[0].khz, Some(2_593_906));
        assert_eq!(cpus[0].bogomips_hundredths, Some(518_781));
        assert_eq!(cpus[0].flags, ["constant_tsc", "hypervisor"]);
        assert_eq!(cpus[1].processor, 7);
        assert!(cpuinfo("junk").is_empty());
    }

    #[test]
    fn decimals_without_floats() {
        for (text, places, value) in [
            ("7999.96", 2, Some(799_996)),
            ("8000", 2, Some(800_000)),
            ("1.5", 3, Some(1500)),
            ("1.23456", 2, Some(123)),
            ("x", 2, None),
            ("1.x", 2, None),
            ("99999999999999999999", 2, None),
        ] {
            assert_eq!(scaled(text, places), value, "{text}");
        }
    }

    #[test]
    fn stat_lines_of_all_ages_are_read() {
        let old = stat("cpu  1 2 3 4\n").unwrap();
        assert_eq!(old.total.unwrap().steal, 0);
        let new = stat("cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 1 1 1 1 1 1 1 0 0\nintr 5\n").unwrap();
        assert_eq!(new.total.unwrap().steal, 8);
        assert_eq!(new.cpus.len(), 1);
        assert!(stat("").is_err());
        assert!(stat("cpu  1 2 99999999999999999999").is_err());
    }

    #[test]
    fn interrupt_rows_keep_their_columns() {
        let capture = interrupts(
            "            CPU0       CPU2\n   0:         45          0   IO-APIC   2-edge      timer\n  24:  1 2 PCI-MSI eth0-host\n LOC:      51000      48000   Local timer interrupts\n ERR:          0\n",
        )
        .unwrap();
        assert_eq!(capture.cpus, [0, 2]);
        assert_eq!(capture.rows.len(), 2);
        assert_eq!(capture.rows[1].counts, [51_000, 48_000]);
        assert!(interrupts("LOC: 1").is_err());
    }
}
