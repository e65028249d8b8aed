//! Curves of what was played: times by percentile, a line for each policy.

use crate::chart::{Axis, Chart, Line};
use portolan_sim::Spread;

/// Time to first token and time to last token by percentile.
pub fn curves<'a>(played: &(impl Iterator<Item = (&'a str, &'a Spread)> + Clone)) -> Vec<Chart> {
    let chart = |name, what: &str, points: fn(&Spread) -> &Vec<(f64, f64)>| Chart {
        name,
        title: format!("{what} by percentile"),
        across: Axis::linear("percentile of the requests"),
        up: format!("{what}, s"),
        lines: played
            .clone()
            .map(|(policy, spread)| Line {
                label: policy.to_owned(),
                points: points(spread).clone(),
            })
            .collect(),
    };
    vec![
        chart("ttft", "Time to first token", |spread| &spread.ttft),
        chart("end-to-end", "Time to last token", |spread| &spread.end_to_end),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_is_a_line_of_each_chart() {
        let spread = |scale: f64| Spread {
            ttft: vec![(1.0, scale), (50.0, 2.0 * scale), (99.0, 9.0 * scale)],
            end_to_end: vec![(1.0, scale + 1.0), (99.0, scale + 20.0)],
        };
        let played = [("offload", spread(1.0)), ("naive", spread(3.0))];
        let charts = curves(&played.iter().map(|(policy, spread)| (*policy, spread)));
        for chart in &charts {
            let drawn = chart.svg().unwrap();
            assert!(drawn.contains("offload") && drawn.contains("naive"), "{drawn}");
        }
        assert_eq!(charts[0].lines[1].points[2], (99.0, 27.0));
        assert_eq!(charts[1].lines[0].points.len(), 2);
    }
}
