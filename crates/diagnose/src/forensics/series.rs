//! Steps, pauses and rates, told apart in a series of readings.
//!
//! # Theory
//!
//! Two clocks read together give offsets `o(i) = (y(i) - y(0)) - (x(i) - x(0))`. A wrong rate is a straight line through them, a
//! step is one interval that fits neither the intervals before nor those after it, and a change of rate is two straight
//! lines that meet. Steps are taken out first, then the rest is fitted.
//!
//! A disturbed reading is a step that the next interval takes back; it is no step.
//!
//! # Caveats
//!
//! A loss no longer than its interval can be a pause or a step back. It is sized as a pause, in which the clock's rate does
//! not act; as a step it would differ by the rate times the loss.
//!
//! A clock that hides backward motion (a guard that repeats the last value, a saturating subtraction) shows equal readings in
//! a row instead: see [`repeats`].

/// A step of one clock against another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Index of the first reading after it.
    pub at: usize,
    /// How far the clock moved beyond its rate, in ns; negative if it fell behind.
    pub size_ns: f64,
}

/// A clock against another over a series: the steps, and the rate with the steps taken out.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Readings of the clock that is compared with, in ns.
    pub x_ns: Vec<i128>,
    /// Offsets against the first pair, in ns.
    pub offsets_ns: Vec<f64>,
    /// Steps, in order.
    pub steps: Vec<Step>,
    /// Spread of the offsets about their lines, in ns.
    pub noise_ns: f64,
    /// One line through all, steps taken out.
    pub rate: Rate,
    /// Two lines that meet, if they fit better than one: index of the bend, rates before and after.
    pub bend: Option<Bend>,
}

/// A rate with what it is good for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    /// Rate minus 1, in ppm.
    pub ppm: f64,
    /// Largest error that the spread allows, in ppm.
    pub error_ppm: f64,
}

/// A change of rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bend {
    /// Index of the reading at which the rate changes.
    pub at: usize,
    /// Before.
    pub before: Rate,
    /// After.
    pub after: Rate,
}

/// Intervals on each side that say what is usual.
const NEIGHBOURS: usize = 5;

impl Comparison {
    /// Compares `y` with `x`, both in ns and of the same length. Steps below `least_step_ns` are taken for noise. `None`
    /// with fewer than three readings or where `x` does not go forward.
    #[must_use]
    pub fn new(x_ns: &[i128], y_ns: &[i128], least_step_ns: f64) -> Option<Self> {
        if x_ns.len() != y_ns.len() || x_ns.len() < 3 {
            return None;
        }
        if x_ns.windows(2).any(|pair| pair[1] <= pair[0]) {
            return None;
        }
        let offsets: Vec<f64> = x_ns
            .iter()
            .zip(y_ns)
            .map(|(x, y)| {
                let passed = x.saturating_sub(x_ns[0]);
                super::real(y.saturating_sub(y_ns[0]).saturating_sub(passed))
            })
            .collect();
        let passed: Vec<f64> = x_ns
            .iter()
            .map(|x| super::real(x.saturating_sub(x_ns[0])))
            .collect();
        let found = find_steps(&passed, &offsets, least_step_ns);
        // A clock that stood still gains or loses nothing by its rate meanwhile.
        let running = running(&passed, &offsets, &found);
        let rough = flattened(&offsets, &found);
        let refined = refine(&running, &offsets, &found);
        let fine = flattened(&offsets, &refined);
        // One slope for all stretches sizes the steps better, unless the rate changes as well.
        let better =
            Line::through(&running, &fine).spread <= Line::through(&running, &rough).spread;
        let (steps, flat) = if better {
            (refined, fine)
        } else {
            (found, rough)
        };
        let one = Line::through(&running, &flat);
        let bend = find_bend(&running, &flat, &one);
        let noise_ns = match &bend {
            Some((_, left, right)) => left.spread.max(right.spread),
            None => one.spread,
        };
        Some(Self {
            rate: one.rate(),
            bend: bend.map(|(at, left, right)| Bend {
                at,
                before: left.rate(),
                after: right.rate(),
            }),
            x_ns: x_ns.to_vec(),
            offsets_ns: offsets,
            steps,
            noise_ns,
        })
    }

    /// Sum of all steps, in ns.
    #[must_use]
    pub fn net_step_ns(&self) -> f64 {
        self.steps.iter().map(|step| step.size_ns).sum()
    }

    /// Whether one straight line describes all of it.
    #[must_use]
    pub fn is_straight(&self) -> bool {
        self.bend.is_none() && self.steps.is_empty()
    }
}

/// The time that passed, less the gaps in which the clock stood still.
fn running(passed: &[f64], offsets: &[f64], steps: &[Step]) -> Vec<f64> {
    let mut running = passed.to_vec();
    for step in steps.iter().filter(|step| step.size_ns < 0.0) {
        let gap = offsets[step.at - 1] - offsets[step.at];
        if gap > passed[step.at] - passed[step.at - 1] {
            // It was set back, which takes no time.
            continue;
        }
        for time in running.iter_mut().skip(step.at) {
            *time -= gap;
        }
    }
    running
}

/// The offsets with the steps taken out.
fn flattened(offsets: &[f64], steps: &[Step]) -> Vec<f64> {
    let mut flat = offsets.to_vec();
    for step in steps {
        for offset in flat.iter_mut().skip(step.at) {
            *offset -= step.size_ns;
        }
    }
    flat
}

/// The sizes of the steps by parallel lines through the stretches between them.
fn refine(passed: &[f64], offsets: &[f64], steps: &[Step]) -> Vec<Step> {
    let bounds: Vec<usize> = core::iter::once(0)
        .chain(steps.iter().map(|step| step.at))
        .chain([passed.len()])
        .collect();
    let mean = |values: &[f64]| {
        let n = super::real(i128::try_from(values.len()).unwrap_or(1)).max(1.0);
        values.iter().sum::<f64>() / n
    };
    let (mut cov, mut var) = (0.0, 0.0);
    let mut middles = Vec::new();
    for pair in bounds.windows(2) {
        let (x, y) = (&passed[pair[0]..pair[1]], &offsets[pair[0]..pair[1]]);
        let (mean_x, mean_y) = (mean(x), mean(y));
        for (x, y) in x.iter().zip(y) {
            cov += (x - mean_x) * (y - mean_y);
            var += (x - mean_x).powi(2);
        }
        middles.push((mean_x, mean_y));
    }
    let slope = if var > 0.0 { cov / var } else { 0.0 };
    steps
        .iter()
        .zip(middles.windows(2))
        .map(|(step, pair)| {
            let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
            Step {
                at: step.at,
                size_ns: (y1 - y0) - slope * (x1 - x0),
            }
        })
        .collect()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// Intervals that fit neither side, largest first, until none is left.
fn find_steps(passed: &[f64], offsets: &[f64], least_ns: f64) -> Vec<Step> {
    let lengths: Vec<f64> = passed.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let moves: Vec<f64> = offsets.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let rates: Vec<f64> = moves.iter().zip(&lengths).map(|(m, l)| m / l).collect();
    let mut taken = vec![false; moves.len()];
    // What an interval moved beyond what its neighbours allow.
    let excess = |i: usize, taken: &[bool]| -> f64 {
        // The rate of the nearest, and the usual rate.
        let side = |indices: &mut dyn Iterator<Item = usize>| -> Option<(f64, f64)> {
            let mut near: Vec<f64> = indices
                .filter(|&j| !taken[j])
                .take(NEIGHBOURS)
                .map(|j| rates[j])
                .collect();
            let nearest = *near.first()?;
            Some((nearest, median(&mut near)))
        };
        let before = side(&mut (0..i).rev());
        let after = side(&mut (i + 1..rates.len()));
        let (low, high) = match (before, after) {
            (Some((_, a)), Some((_, b))) => (a.min(b), a.max(b)),
            // At an end of a short series the usual rate can be that beyond a bend.
            (Some((near, a)), None) | (None, Some((near, a))) => (a.min(near), a.max(near)),
            (None, None) => return 0.0,
        };
        if rates[i] > high {
            (rates[i] - high) * lengths[i]
        } else if rates[i] < low {
            (rates[i] - low) * lengths[i]
        } else {
            0.0
        }
    };
    // An interval that gained or lost more than half of itself ran at no rate: it says nothing of what is usual.
    let mut no_rate: Vec<bool> = rates.iter().map(|rate| rate.abs() > 0.5).collect();
    if no_rate.iter().all(|no_rate| *no_rate) {
        no_rate.fill(false);
    }
    let mut sizes: Vec<f64> = (0..moves.len())
        .filter(|&i| !no_rate[i])
        .map(|i| excess(i, &no_rate).abs())
        .collect();
    let usual = median(&mut sizes);
    let least = least_ns.max(8.0 * 1.4826 * usual);
    let mut steps = Vec::new();
    // Each round takes one interval, so there are at most as many rounds as intervals.
    for _ in 0..moves.len() {
        let largest = (0..moves.len())
            .filter(|&i| !taken[i])
            .map(|i| (i, excess(i, &taken)))
            .filter(|(_, size)| size.abs() > least)
            .max_by(|(i, a), (j, b)| {
                a.abs()
                    .total_cmp(&b.abs())
                    .then(moves[*i].abs().total_cmp(&moves[*j].abs()))
            });
        let Some((i, size)) = largest else { break };
        taken[i] = true;
        steps.push((i, size));
    }
    steps.sort_by_key(|(i, _)| *i);
    // A disturbed reading: out and back again.
    let mut kept: Vec<Step> = Vec::new();
    let mut i = 0;
    while i < steps.len() {
        let (at, size) = steps[i];
        if let Some(&(next, back)) = steps.get(i + 1)
            && next == at + 1
            && (size + back).abs() < 0.2 * size.abs()
            // A reading is late by no more than the time until the next one.
            && size.abs() <= lengths[at] + lengths[next]
        {
            i += 2;
            continue;
        }
        kept.push(Step {
            at: at + 1,
            size_ns: size,
        });
        i += 1;
    }
    kept
}

/// A least-squares line.
#[derive(Clone, Debug)]
struct Line {
    slope: f64,
    spread: f64,
    length: f64,
}

impl Line {
    fn through(x: &[f64], y: &[f64]) -> Self {
        let n = super::real(i128::try_from(x.len()).unwrap_or(i128::MAX)).max(1.0);
        let mean_x = x.iter().sum::<f64>() / n;
        let mean_y = y.iter().sum::<f64>() / n;
        let var: f64 = x.iter().map(|x| (x - mean_x).powi(2)).sum();
        let cov: f64 = x
            .iter()
            .zip(y)
            .map(|(x, y)| (x - mean_x) * (y - mean_y))
            .sum();
        let slope = if var > 0.0 { cov / var } else { 0.0 };
        let spread = x
            .iter()
            .zip(y)
            .map(|(x, y)| (y - mean_y - slope * (x - mean_x)).abs())
            .fold(0.0, f64::max);
        let length = x.last().copied().unwrap_or(0.0) - x.first().copied().unwrap_or(0.0);
        Self {
            slope,
            spread,
            length,
        }
    }

    fn rate(&self) -> Rate {
        Rate {
            ppm: self.slope * 1e6,
            error_ppm: if self.length > 0.0 {
                2.0 * self.spread / self.length * 1e6
            } else {
                0.0
            },
        }
    }
}

/// The bend that leaves least spread, if it is a bend: both sides straight and the one line clearly worse.
fn find_bend(x: &[f64], y: &[f64], one: &Line) -> Option<(usize, Line, Line)> {
    const LEAST: usize = 3;
    if x.len() < 2 * LEAST || one.spread < 1000.0 {
        return None;
    }
    let mut best: Option<(f64, usize, Line, Line)> = None;
    for at in LEAST - 1..=x.len() - LEAST {
        let left = Line::through(&x[..=at], &y[..=at]);
        let right = Line::through(&x[at..], &y[at..]);
        let spread = left.spread.max(right.spread);
        if best.as_ref().is_none_or(|(least, ..)| spread < *least) {
            best = Some((spread, at, left, right));
        }
    }
    let (spread, at, left, right) = best?;
    (spread * 4.0 < one.spread).then_some((at, left, right))
}

/// Equal readings in a row: how a clock shows that it hides backward motion or that it is coarse.
#[must_use]
pub fn repeats(readings: &[i128]) -> usize {
    readings
        .windows(2)
        .filter(|pair| pair[0] == pair[1])
        .count()
}

#[cfg(test)]
mod tests;
