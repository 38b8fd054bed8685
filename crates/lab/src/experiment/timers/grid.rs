//! How many ticks of a periodic timer did not come, from the ticks that did.

/// Grid points that no tick of its own came for.
///
/// A tick stands for every grid point since the one before, the grid being where the promptest ticks lie: it follows a timer whose
/// clock is slewed against the TSC by up to 500 ppm. Ticks that are owed and come in quick succession pay off what was counted as
/// lost. A tick is late, not lost, until the next grid point has passed too.
pub(super) fn lost(ticks: &[u64], period: u64) -> u64 {
    let period = period.max(1);
    let mut ticks = ticks.iter().copied();
    let Some(mut grid) = ticks.next() else {
        return 0;
    };
    let mut lost = 0;
    for tick in ticks {
        let since = tick.saturating_sub(grid);
        match since / period {
            0 if lost > 0 && since < period / 4 * 3 => lost -= 1,
            0 => grid = tick,
            passed => {
                lost += passed - 1;
                let due = grid.saturating_add(passed.saturating_mul(period));
                grid = tick.min(due.saturating_add(period / 2000));
            }
        }
    }
    lost
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: u64 = 1_000_000;

    fn on_grid(lateness: &[u64]) -> Vec<u64> {
        (1..)
            .zip(lateness)
            .map(|(n, late)| n * PERIOD + late)
            .collect()
    }

    #[test]
    fn late_ticks_are_not_lost() {
        let late = [900_000, 0, 999_000, 10, 600_000, 0, 990_000];
        assert_eq!(lost(&on_grid(&late), PERIOD), 0);
    }

    #[test]
    fn merged_ticks_are_lost() {
        let mut ticks = on_grid(&[0; 20]);
        // The 5th comes 3.3 periods late, for itself and three more.
        ticks[4] += 3_300_000;
        ticks.drain(5..8);
        assert_eq!(lost(&ticks, PERIOD), 3);
        assert_eq!(lost(&[0, 10 * PERIOD + 5], PERIOD), 9);
    }

    #[test]
    fn ticks_that_are_delivered_later_are_not_lost() {
        let mut ticks = on_grid(&[0; 20]);
        for (at, tick) in (4..8).zip([8_300_000, 8_400_000, 8_500_000, 8_600_000]) {
            ticks[at] = tick;
        }
        assert_eq!(lost(&ticks, PERIOD), 0);
    }

    #[test]
    fn a_slewed_clock_loses_nothing() {
        for slew in [-100, 100] {
            let ticks: Vec<u64> = (1..=150_000)
                .map(|n: u64| (n * PERIOD).saturating_add_signed(slew * n.cast_signed()))
                .collect();
            assert_eq!(lost(&ticks, PERIOD), 0, "{slew} ppm");
        }
    }
}
