use super::*;
use proptest::prelude::*;

fn of(values: &[u64]) -> Histogram {
    let mut histogram = Histogram::new();
    for value in values {
        histogram.record(*value);
    }
    histogram
}

/// The value of rank ceil(n (1 - 1/k)) in the sorted list.
fn exact_all_but_one_in(values: &[u64], one_in: u64) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let n = u64::try_from(sorted.len()).unwrap();
    sorted[usize::try_from((n - n / one_in).max(1) - 1).unwrap()]
}

#[test]
fn an_empty_histogram_says_nothing() {
    let empty = Histogram::new();
    assert_eq!(
        (empty.count(), empty.min(), empty.max(), empty.median()),
        (0, None, None, None)
    );
    assert_eq!(empty.summary(), None);
}

#[test]
fn a_percentile_that_few_values_cannot_tell_is_absent() {
    let summary = of(&(1..=999).collect::<Vec<_>>()).summary().unwrap();
    assert_eq!(summary.percentiles.p99, Some(990));
    assert_eq!(summary.percentiles.p99_9, None, "999 values have no p99.9");
    let summary = of(&(1..=1000).collect::<Vec<_>>()).summary().unwrap();
    assert_eq!(summary.percentiles.p99_9, Some(999));
}

#[test]
fn the_largest_values_have_buckets() {
    let histogram = of(&[0, 1, u64::MAX - 1, u64::MAX]);
    assert_eq!(
        (histogram.min(), histogram.max()),
        (Some(0), Some(u64::MAX))
    );
    assert_eq!(
        histogram.buckets().map(|bucket| bucket.count).sum::<u64>(),
        4
    );
    assert_eq!(
        histogram.buckets().last().map(|bucket| bucket.high),
        Some(u64::MAX)
    );
}

#[test]
fn a_full_histogram_takes_no_more_and_says_so_when_merged() {
    let mut full = Histogram::new();
    full.record_n(7, u64::MAX);
    full.record(7);
    assert_eq!(full.count(), u64::MAX);
    assert_eq!(
        full.merge(&of(&[1])),
        Err(HistogramError::TooManyValues {
            count: u64::MAX,
            other: 1
        })
    );
    assert_eq!(full.min(), Some(7));
}

#[test]
fn a_damaged_file_is_refused() {
    let good = serde_json::to_value(of(&[5, 6, 2000])).unwrap();
    assert!(serde_json::from_value::<Histogram>(good.clone()).is_ok());
    for (field, value) in [
        ("count", serde_json::json!(4)),
        ("min", serde_json::json!(9000)),
        ("max", serde_json::json!(u64::MAX)),
        ("min", serde_json::json!(null)),
        ("sum", serde_json::json!("6001")),
        ("sum", serde_json::json!("many")),
        ("squares", serde_json::json!(["18446744073709551616", "0"])),
        ("buckets", serde_json::json!([[5, u64::MAX], [6, 7]])),
    ] {
        let mut bad = good.clone();
        bad[field] = value.clone();
        let answer = serde_json::from_value::<Histogram>(bad);
        assert!(answer.is_err(), "{field} = {value} was accepted");
    }
}

proptest! {
    /// exact <= reported <= exact * 1.001, and the ends are exact.
    #[test]
    fn percentiles_are_within_their_bound(values in prop::collection::vec(prop_oneof![0_u64..5000, any::<u64>()], 1..400), one_in in 2_u32..200) {
        let histogram = of(&values);
        prop_assert_eq!(histogram.min(), values.iter().min().copied());
        prop_assert_eq!(histogram.max(), values.iter().max().copied());
        match histogram.all_but_one_in(one_in) {
            None => prop_assert!(values.len() < usize::try_from(one_in).unwrap()),
            Some(reported) => {
                let exact = exact_all_but_one_in(&values, u64::from(one_in));
                prop_assert!(reported >= exact);
                prop_assert!(u128::from(reported - exact) * 1000 <= u128::from(exact), "{reported} for {exact}");
            }
        }
    }

    #[test]
    fn shards_merge_to_the_same_in_any_order(a: Vec<u64>, b: Vec<u64>, c: Vec<u64>) {
        let whole = of(&[a.clone(), b.clone(), c.clone()].concat());
        let mut one_way = of(&a);
        one_way.merge(&of(&b)).unwrap();
        one_way.merge(&of(&c)).unwrap();
        let mut other_way = of(&c);
        other_way.merge(&of(&a)).unwrap();
        other_way.merge(&of(&b)).unwrap();
        prop_assert_eq!(&one_way, &whole);
        prop_assert_eq!(&other_way, &whole);
        prop_assert_eq!(one_way.summary(), whole.summary());
    }

    #[test]
    fn a_saved_histogram_comes_back_whole(values: Vec<u64>) {
        let histogram = of(&values);
        let text = serde_json::to_string(&histogram).unwrap();
        prop_assert_eq!(serde_json::from_str::<Histogram>(&text).unwrap(), histogram);
    }
}
