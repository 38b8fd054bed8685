//! The comma-separated files of an evidence tree.

use super::complaint::Complaints;
use super::proc::scaled;
use crate::evidence::{
    Column, MsrAccess, MsrCapture, MsrCount, ReadCost, ReadPath, Samples, SyscallCount,
};

/// Rows that are kept; the format allows 400.
const MOST_ROWS: usize = 2000;

/// Largest value of a reading without sign: a counter of 64 bits.
pub(super) const LARGEST: i128 = 1 << 64;

/// The names of the columns, and the rows with the numbers of their lines.
type Table<'a> = (Vec<&'a str>, Vec<(usize, Vec<&'a str>)>);

/// Header and rows with their line numbers. Blank lines and lines that begin with `#` are passed over.
fn table<'a>(text: &'a str) -> Option<Table<'a>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let split = |line: &'a str| line.split(',').map(str::trim).collect::<Vec<_>>();
    let mut lines = text
        .lines()
        .enumerate()
        .map(|(i, line)| (i + 1, line.trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let (_, header) = lines.next()?;
    Some((
        split(header),
        lines.map(|(number, line)| (number, split(line))).collect(),
    ))
}

/// `samples.csv`.
///
/// # Errors
///
/// A file without a known column or without a row.
pub(super) fn samples(
    text: &str,
    file: &str,
    complaints: &mut Complaints,
) -> Result<Samples, String> {
    let (header, rows) = table(text).ok_or("it is empty")?;
    let mut columns: Vec<(usize, Column, Vec<Option<i128>>)> = Vec::new();
    for (i, name) in header.iter().enumerate() {
        match Column::from_name(name) {
            Some(column) if columns.iter().any(|(_, other, _)| *other == column) => {
                complaints.add(format!(
                    "{file} line 1: column {} stands there twice, the first counts",
                    column.name()
                ))
            }
            Some(column) => columns.push((i, column, Vec::new())),
            None => complaints.add(format!(
                "{file} line 1: column {} is not known, passed over",
                i + 1
            )),
        }
    }
    if columns.is_empty() {
        return Err("no known column".to_owned());
    }
    if rows.len() > MOST_ROWS {
        complaints.add(format!(
            "{file}: {} rows, only the first {MOST_ROWS} are used",
            rows.len()
        ));
    }
    for (number, cells) in rows.iter().take(MOST_ROWS) {
        for (i, column, values) in &mut columns {
            let cell = cells.get(*i).copied().unwrap_or("");
            let value = match cell.parse::<i128>() {
                Ok(value) if value.abs() <= LARGEST => Some(value),
                Ok(_) => {
                    complaints.add(format!(
                        "{file} line {number}: {} is beyond 64 bits, passed over",
                        column.name()
                    ));
                    None
                }
                Err(_) if cell.is_empty() => None,
                Err(_) => {
                    complaints.add(format!(
                        "{file} line {number}: {} is not a whole number, passed over",
                        column.name()
                    ));
                    None
                }
            };
            values.push(value);
        }
    }
    if columns
        .iter()
        .all(|(.., values)| values.iter().all(Option::is_none))
    {
        return Err("no reading in it".to_owned());
    }
    Ok(Samples {
        columns: columns
            .into_iter()
            .map(|(_, column, values)| (column, values))
            .collect(),
    })
}

/// Rows of a table by the names of its columns; a row that `make` refuses is a complaint.
fn rows<T>(
    text: &str,
    file: &str,
    wanted: &[&str],
    complaints: &mut Complaints,
    make: impl Fn(&[&str]) -> Option<T>,
) -> Result<Vec<T>, String> {
    let (header, rows) = table(text).ok_or("it is empty")?;
    let places: Option<Vec<usize>> = wanted
        .iter()
        .map(|name| header.iter().position(|other| other == name))
        .collect();
    let places = places.ok_or_else(|| format!("its header is not {}", wanted.join(",")))?;
    let mut made = Vec::new();
    for (number, cells) in rows.into_iter().take(MOST_ROWS) {
        let cells: Option<Vec<&str>> = places.iter().map(|i| cells.get(*i).copied()).collect();
        match cells.and_then(|cells| make(&cells)) {
            Some(row) => made.push(row),
            None => complaints.add(format!(
                "{file} line {number}: not a row of {}",
                wanted.join(",")
            )),
        }
    }
    if made.is_empty() {
        return Err("no row in it".to_owned());
    }
    Ok(made)
}

fn plain(cell: &str) -> Option<String> {
    (!cell.is_empty() && cell.len() <= 64).then(|| cell.to_owned())
}

/// `cost.csv`.
///
/// # Errors
///
/// Another header, or no row.
pub(super) fn costs(
    text: &str,
    file: &str,
    complaints: &mut Complaints,
) -> Result<Vec<ReadCost>, String> {
    rows(
        text,
        file,
        &["clock", "ns_per_read", "path"],
        complaints,
        |cells| {
            let ns_per_read: f64 = cells[1].parse().ok()?;
            let path = match cells[2] {
                "rdtsc" => ReadPath::Rdtsc,
                "page" => ReadPath::Page,
                "vdso" => ReadPath::Vdso,
                "syscall" => ReadPath::Syscall,
                "msr" => ReadPath::Msr,
                _ => return None,
            };
            (ns_per_read.is_finite() && ns_per_read >= 0.0).then_some(ReadCost {
                clock: plain(cells[0])?,
                ns_per_read,
                path,
                cycles: None,
                resolution_ns: None,
                stalls: None,
                regressions: None,
            })
        },
    )
}

/// `syscalls.csv`.
///
/// # Errors
///
/// Another header, or no row.
pub(super) fn syscalls(
    text: &str,
    file: &str,
    complaints: &mut Complaints,
) -> Result<Vec<SyscallCount>, String> {
    rows(
        text,
        file,
        &["call", "calls_made", "syscalls_seen"],
        complaints,
        |cells| {
            Some(SyscallCount {
                call: plain(cells[0])?,
                calls_made: cells[1].parse().ok()?,
                syscalls_seen: cells[2].parse().ok()?,
            })
        },
    )
}

/// `kvm/msr_counts.csv`.
///
/// # Errors
///
/// Another header, or no row.
pub(super) fn msr_counts(
    text: &str,
    file: &str,
    complaints: &mut Complaints,
) -> Result<MsrCapture, String> {
    rows(
        text,
        file,
        &["access", "msr", "count", "window_s"],
        complaints,
        |cells| {
            let access = match cells[0] {
                "read" | "rdmsr" | "msr_read" | "r" => MsrAccess::Read,
                "write" | "wrmsr" | "msr_write" | "w" => MsrAccess::Write,
                _ => return None,
            };
            let msr = match cells[1].strip_prefix("0x").or(cells[1].strip_prefix("0X")) {
                Some(hex) => u32::from_str_radix(hex, 16).ok()?,
                None => cells[1]
                    .parse()
                    .ok()
                    .or_else(|| u32::from_str_radix(cells[1], 16).ok())?,
            };
            Some(MsrCount {
                access,
                msr,
                count: cells[2].parse().ok()?,
                window_ns: scaled(cells[3], 9).unwrap_or(0),
            })
        },
    )
    .map(|rows| MsrCapture { rows })
}

#[cfg(test)]
mod tests {
    use super::super::complaint::Complaints;
    use super::{costs, msr_counts, samples, syscalls};
    use crate::evidence::{Column, MsrAccess};

    #[test]
    fn samples_take_any_columns_and_name_what_is_wrong() {
        let mut complaints = Complaints::default();
        let text = "cpu,tsc,what,monotonic_ns\n0,18446744073709551615,x,5\n1,,,-7\n1,99999999999999999999999,,1.5\n";
        let samples = samples(text, "samples.csv", &mut complaints).unwrap();
        assert_eq!(
            samples.columns[&Column::Tsc],
            [Some(u64::MAX.into()), None, None]
        );
        assert_eq!(
            samples.columns[&Column::MonotonicNs],
            [Some(5), Some(-7), None]
        );
        let lines = complaints.into_lines();
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[1].contains("line 4") && lines[1].contains("64 bits"));
    }

    #[test]
    fn a_file_without_sense_is_refused_with_the_reason() {
        let mut complaints = Complaints::default();
        assert!(samples("", "f", &mut complaints).is_err());
        assert!(samples("a,b\n1,2\n", "f", &mut complaints).is_err());
        assert!(samples("tsc\n", "f", &mut complaints).is_err());
        assert!(costs("clock,ns,path\n", "f", &mut complaints).is_err());
        assert!(costs("clock,ns_per_read,path\nx,NaN,vdso\n", "f", &mut complaints).is_err());
        assert!(
            syscalls(
                "call,calls_made,syscalls_seen\nx,-1,0\n",
                "f",
                &mut complaints
            )
            .is_err()
        );
    }

    #[test]
    fn msr_numbers_come_in_hex_or_decimal() {
        let mut complaints = Complaints::default();
        let text =
            "access,msr,count,window_s\nread,0x40000020,3249387,90\nwrite,1073741857,0,0.5\n";
        let capture = msr_counts(text, "f", &mut complaints).unwrap();
        assert_eq!(capture.rows[0].msr, 0x4000_0020);
        assert_eq!(capture.rows[0].window_ns, 90_000_000_000);
        assert_eq!(capture.rows[1].msr, 0x4000_0021);
        assert_eq!(capture.rows[1].access, MsrAccess::Write);
        assert_eq!(capture.rows[1].window_ns, 500_000_000);
    }
}
