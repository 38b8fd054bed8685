//! Where the kernel put its clock pages: the lines `[vvar]` and `[vvar_vclock]` of `/proc/self/maps`, and what each page is.
//!
//! | kernel | mapping | pages in order |
//! | --- | --- | --- |
//! | 4.12 to 5.5 | `[vvar]`, 3 pages | time data, pvclock, Hyper-V |
//! | 5.6 to 6.12 | `[vvar]`, 4 pages | time data, pvclock, Hyper-V, time namespace |
//! | 6.13, 6.14 | `[vvar]`, 2 pages, and `[vvar_vclock]`, 2 pages | time data, time namespace; pvclock, Hyper-V |
//! | 6.15 and later | `[vvar]`, 4 pages, and `[vvar_vclock]`, 2 pages | time data, time namespace, random, architecture; pvclock, Hyper-V |
//!
//! References: Linux `arch/x86/entry/vdso/vma.c`, `arch/x86/include/asm/vvar.h` (up to 6.12), `include/vdso/datapage.h` (since).

use core::ops::Range;

/// Size of a page, in bytes.
pub const PAGE_BYTES: usize = 4096;

/// Addresses of the kernel's clock pages in this process; whether a page is present is another question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The kernel's time data.
    pub time_data: usize,
    /// The time namespace's page: the time data lies here if the process is in a time namespace of its own.
    pub time_namespace: Option<usize>,
    /// The boot CPU's pvclock record and those of the other CPUs behind it.
    pub pvclock: Option<usize>,
    /// The Hyper-V reference TSC page.
    pub hyperv: Option<usize>,
    /// Whether `[vvar_vclock]` is there: kernel 6.13 and later.
    pub generation: Generation,
}

/// Which kind of kernel laid the pages out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// All pages in `[vvar]`.
    Vvar,
    /// pvclock and Hyper-V in `[vvar_vclock]`.
    VvarVclock,
}

/// Why the pages' addresses are not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// No `[vvar]` at all.
    #[error(
        "the process has no [vvar] mapping: the kernel runs with vdso=0, or is no Linux on x86"
    )]
    NoVvar,
    /// A number of pages that no known kernel has.
    #[error(
        "[vvar] has {vvar} pages and [vvar_vclock] {vclock}: no known kernel lays its clock pages out so"
    )]
    Unknown {
        /// Pages of `[vvar]`.
        vvar: usize,
        /// Pages of `[vvar_vclock]`.
        vclock: usize,
    },
}

impl Layout {
    /// The addresses in the text of a `/proc/<pid>/maps`.
    ///
    /// # Errors
    ///
    /// [`LayoutError`] if there are none or their number is unknown.
    ///
    /// ```
    /// # use chronovisor_guest::linux::maps::Layout;
    /// let old = "7ffff7fc1000-7ffff7fc5000 r--p 00000000 00:00 0    [vvar]\n";
    /// assert_eq!(Layout::from_maps(old)?.pvclock, Some(0x7fff_f7fc_2000));
    /// # Ok::<(), chronovisor_guest::linux::maps::LayoutError>(())
    /// ```
    pub fn from_maps(maps: &str) -> Result<Self, LayoutError> {
        let vvar = mapping(maps, "[vvar]").ok_or(LayoutError::NoVvar)?;
        let vclock = mapping(maps, "[vvar_vclock]");
        let pages = |range: &Range<usize>| (range.end - range.start) / PAGE_BYTES;
        let vclock_pages = vclock.as_ref().map_or(0, pages);
        let vvar_page = |n: usize| vvar.start + n * PAGE_BYTES;
        match (pages(&vvar), vclock) {
            (count @ (3 | 4), None) => Ok(Self {
                time_data: vvar.start,
                time_namespace: (count == 4).then(|| vvar_page(3)),
                pvclock: Some(vvar_page(1)),
                hyperv: Some(vvar_page(2)),
                generation: Generation::Vvar,
            }),
            (2.., Some(vclock)) if vclock_pages == 2 => Ok(Self {
                time_data: vvar.start,
                time_namespace: Some(vvar_page(1)),
                pvclock: Some(vclock.start),
                hyperv: Some(vclock.start + PAGE_BYTES),
                generation: Generation::VvarVclock,
            }),
            (count, _) => Err(LayoutError::Unknown {
                vvar: count,
                vclock: vclock_pages,
            }),
        }
    }
}

/// The address range of the line whose name is `name`: all that stands behind range, permissions, offset, device and inode. A file's name may contain anything, but
/// begins with a slash.
fn mapping(maps: &str, name: &str) -> Option<Range<usize>> {
    maps.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (range, found) = (words.next()?, words.nth(4)?);
        if found != name || words.next().is_some() {
            return None;
        }
        let (start, end) = range.split_once('-')?;
        let address = |hex| usize::from_str_radix(hex, 16).ok();
        let range = address(start)?..address(end)?;
        let whole_pages =
            range.start.is_multiple_of(PAGE_BYTES) && range.end.is_multiple_of(PAGE_BYTES);
        (whole_pages && range.start < range.end).then_some(range)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BASE: usize = 0x7fde_2aee_1000;

    fn page(n: usize) -> usize {
        BASE + n * PAGE_BYTES
    }

    /// Lines as kernels of each generation print them, and the pages that they mean: (time namespace, pvclock, Hyper-V).
    #[test]
    fn each_generation_of_kernels_is_known() {
        let heap = "5581a000-5581b000 rw-p 00000000 00:00 0                          [heap]\n";
        let vdso = "7fde2aee7000-7fde2aee9000 r-xp 00000000 00:00 0                  [vdso]\n";
        for (name, lines, expected) in [
            (
                "5.4",
                "7fde2aee1000-7fde2aee4000 r--p 00000000 00:00 0 [vvar]\n",
                (None, page(1), page(2)),
            ),
            (
                "6.1",
                "7fde2aee1000-7fde2aee5000 r--p 00000000 00:00 0 [vvar]\n",
                (Some(page(3)), page(1), page(2)),
            ),
            (
                "6.13",
                "7fde2aee1000-7fde2aee3000 r--p 00000000 00:00 0 [vvar]\n\
                 7fde2aee3000-7fde2aee5000 r--p 00000000 00:00 0 [vvar_vclock]\n",
                (Some(page(1)), page(2), page(3)),
            ),
            (
                "6.18",
                "7fde2aee1000-7fde2aee5000 r--p 00000000 00:00 0 [vvar]\n\
                 7fde2aee5000-7fde2aee7000 r--p 00000000 00:00 0 [vvar_vclock]\n",
                (Some(page(1)), page(4), page(5)),
            ),
        ] {
            let layout = Layout::from_maps(&[heap, lines, vdso].concat()).expect(name);
            assert_eq!(layout.time_data, BASE, "{name}");
            assert_eq!(
                (layout.time_namespace, layout.pvclock, layout.hyperv),
                (expected.0, Some(expected.1), Some(expected.2)),
                "{name}"
            );
        }
    }

    #[test]
    fn what_no_kernel_does_is_refused() {
        assert_eq!(Layout::from_maps(""), Err(LayoutError::NoVvar));
        // A file that happens to be called so is no mapping of the kernel's.
        for path in [
            "/tmp/[vvar]",
            "/tmp/a [vvar]",
            "/tmp/a\u{a0}[vvar]",
            "/memfd:[vvar] (deleted)",
        ] {
            let file = std::format!("7fde2aee1000-7fde2aee5000 r--p 00000000 08:01 7 {path}\n");
            assert_eq!(Layout::from_maps(&file), Err(LayoutError::NoVvar), "{path}");
        }
        for (vvar_end, vclock_end, vvar, vclock) in [(2, 2, 1, 0), (8, 8, 7, 0), (3, 4, 2, 1)] {
            let mut text =
                std::format!("{:x}-{:x} r--p 0 0 0 [vvar]\n", page(0), page(vvar_end - 1));
            if vclock > 0 {
                text += &std::format!(
                    "{:x}-{:x} r--p 0 0 0 [vvar_vclock]\n",
                    page(vvar_end - 1),
                    page(vclock_end - 1)
                );
            }
            assert_eq!(
                Layout::from_maps(&text),
                Err(LayoutError::Unknown { vvar, vclock }),
                "{text}"
            );
        }
    }

    #[test]
    fn this_process_has_its_pages_in_a_known_layout() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let layout = Layout::from_maps(&maps).expect("a Linux kernel of the table above");
        assert!(layout.pvclock.is_some());
    }

    proptest! {
        #[test]
        fn any_text_is_safe(text in r"([0-9a-f]{0,17}-[0-9a-f]{0,17} .{0,20} \[vvar(_vclock)?\]\n){0,3}") {
            let _ = Layout::from_maps(&text);
        }
    }
}
