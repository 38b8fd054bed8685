use super::{Comparison, repeats};
use proptest::prelude::*;

const SECOND: i128 = 1_000_000_000;

fn grid(rows: i128) -> Vec<i128> {
    (0..rows).map(|i| i * SECOND).collect()
}

/// y = x (1 + ppm e-6), with a step at one reading.
fn with(x: &[i128], ppm: i128, step_at: usize, step_ns: i128) -> Vec<i128> {
    x.iter()
        .enumerate()
        .map(|(i, x)| x + x * ppm / 1_000_000 + if i >= step_at { step_ns } else { 0 })
        .collect()
}

#[test]
fn a_rate_is_no_step_and_a_step_no_rate() {
    let x = grid(60);
    let rate = Comparison::new(&x, &with(&x, 70_000, 99, 0), 1e6).unwrap();
    assert!(rate.steps.is_empty());
    assert!((rate.rate.ppm - 70_000.0).abs() < 0.01);
    let step = Comparison::new(&x, &with(&x, 0, 20, -3 * SECOND), 1e6).unwrap();
    assert_eq!(step.steps.len(), 1);
    assert_eq!(step.steps[0].at, 20);
    assert!((step.steps[0].size_ns + 3e9).abs() < 1.0);
    assert!(step.rate.ppm.abs() < 1.0);
}

#[test]
fn a_bend_is_found_with_both_rates() {
    let x = grid(40);
    let y: Vec<i128> = x
        .iter()
        .map(|x| {
            let late = (x - 20 * SECOND).max(0);
            x + late * 12_000 / 1_000_000
        })
        .collect();
    let found = Comparison::new(&x, &y, 1e6).unwrap();
    assert!(found.steps.is_empty(), "{:?}", found.steps);
    let bend = found.bend.unwrap();
    assert!(bend.at.abs_diff(20) <= 1);
    assert!(bend.before.ppm.abs() < 100.0);
    assert!((bend.after.ppm - 12_000.0).abs() < 100.0);
}

#[test]
fn a_disturbed_reading_is_no_step() {
    let x = grid(30);
    let mut y = x.clone();
    y[15] += 400_000_000;
    let found = Comparison::new(&x, &y, 1e6).unwrap();
    assert!(found.steps.is_empty(), "{:?}", found.steps);
    assert!(found.bend.is_none());
}

#[test]
fn few_readings_still_show_a_gap() {
    let x = [0, SECOND, 10 * SECOND, 11 * SECOND];
    let y = [0, SECOND, 2 * SECOND, 3 * SECOND];
    let found = Comparison::new(&x, &y, 1e6).unwrap();
    assert_eq!(found.steps.len(), 1);
    assert_eq!(found.steps[0].at, 2);
    assert!((found.net_step_ns() + 8e9).abs() < 1.0);
    assert!(Comparison::new(&x[..2], &y[..2], 1e6).is_none());
    assert!(Comparison::new(&[0, 0, 1], &[0, 1, 2], 1e6).is_none());
}

#[test]
fn repeats_count_equal_neighbours() {
    assert_eq!(repeats(&[1, 1, 2, 3, 3, 3]), 3);
}

proptest! {
    /// One step in noise far below it is found with its size.
    #[test]
    fn a_step_is_recovered(
        ppm in -500_i128..500,
        at in 3_usize..57,
        size in prop_oneof![-20_000_000_000_i128..-50_000_000, 50_000_000_i128..20_000_000_000],
        noise in proptest::collection::vec(-20_000_i128..20_000, 60),
    ) {
        let x = grid(60);
        let y: Vec<i128> = with(&x, ppm, at, size).iter().zip(noise).map(|(y, n)| y + n).collect();
        let found = Comparison::new(&x, &y, 1e6).unwrap();
        prop_assert_eq!(found.steps.len(), 1);
        prop_assert_eq!(found.steps[0].at, at);
        let size = super::super::real(size);
        // A loss no longer than its interval may be a pause, in which the rate does not act.
        let unsure = if (-1e9..0.0).contains(&size) { size.abs() * super::super::real(ppm.abs()) / 1e6 } else { 0.0 };
        prop_assert!((found.steps[0].size_ns - size).abs() < 1e5 + unsure);
        prop_assert!((found.rate.ppm - super::super::real(ppm)).abs() < 5.0);
    }

    /// Noise alone gives no step and no bend.
    #[test]
    fn noise_stays_silent(ppm in -500_i128..500, noise in proptest::collection::vec(-200_000_i128..200_000, 60)) {
        let x = grid(60);
        let y: Vec<i128> = with(&x, ppm, 99, 0).iter().zip(noise).map(|(y, n)| y + n).collect();
        let found = Comparison::new(&x, &y, 1e6).unwrap();
        prop_assert!(found.steps.is_empty());
        prop_assert!(found.bend.is_none());
    }
}
