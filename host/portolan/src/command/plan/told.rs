//! A plan in words, tables and curves.

use crate::plan::example::{Compared, SOURCE};
use crate::plan::study::{Judged, Study};
use portolan_planner::{AtBandwidth, Bottleneck, Plan, Worth};

/// Everything that is said of a study.
pub(super) fn study(study: &Study) -> Vec<String> {
    let mut out = optimum(study);
    out.push(String::new());
    out.extend(baselines(study));
    out.push(String::new());
    out.extend(bandwidths(&study.bandwidths));
    for chart in &study.charts {
        out.push(String::new());
        out.extend(chart.terminal());
    }
    out
}

fn optimum(study: &Study) -> Vec<String> {
    let Judged {
        plan, capacity_rps, ..
    } = &study.best;
    let bound = study.bound.lambda_max;
    let what = match plan.offloaded_share > 0.0 {
        true => format!("offload uncached prompts over {} tokens", plan.threshold.0),
        false => "offload nothing".to_owned(),
    };
    let mut out = vec![
        format!(
            "optimum  {what}; {} local instances prefill, {} decode",
            plan.split.prefill, plan.split.decode
        ),
        format!(
            "         {:.3} req/s, held by {}; {:.1} % of requests offloaded, {:.0} tokens on average, {:.1} Gbit/s",
            plan.lambda_max,
            held_by(plan.bottleneck),
            plan.offloaded_share * 100.0,
            plan.offloaded_mean_tokens,
            plan.egress.0 as f64 / 1e9
        ),
        format!(
            "bound    {bound:.3} req/s for any policy (linear programming); queues of this plan reach {capacity_rps:.3}, {:.1} %",
            capacity_rps / bound * 100.0
        ),
    ];
    out.extend(beyond(plan.lambda_max, bound));
    out.push(format!(
        "worth    one per cent more brings: {}",
        worth(study.bound.worth)
    ));
    out
}

/// Why a plan's figure lies above what any policy reaches, where it does.
fn beyond(rps: f64, bound: f64) -> Option<String> {
    (rps > bound).then(|| {
        format!(
            "         {rps:.3} is more, since the profile's `averaging: time-of-mean` promises what queues do not reach"
        )
    })
}

fn worth(worth: Worth) -> String {
    let parts = [
        ("remote prefill", worth.remote_prefill),
        ("bandwidth", worth.egress),
        ("local prefill", worth.local),
        ("decode", worth.decode),
    ];
    let parts = parts.into_iter().filter(|(_, share)| *share >= 0.0005);
    let parts: Vec<_> = parts
        .map(|(name, share)| format!("{name} {share:.2} %"))
        .collect();
    parts.join(", ")
}

fn held_by(bottleneck: Bottleneck) -> &'static str {
    match bottleneck {
        Bottleneck::RemotePrefill => "remote prefill",
        Bottleneck::Egress => "the link",
        Bottleneck::LocalPrefill => "local prefill",
        Bottleneck::Decode => "decode",
    }
}

fn baselines(study: &Study) -> Vec<String> {
    let base = study.homogeneous.map(|homogeneous| homogeneous.plan.lambda_max);
    let row = |name: &str, judged: &Judged| {
        let plan = &judged.plan;
        vec![
            name.to_owned(),
            threshold(plan),
            format!("{}/{}", plan.split.prefill, plan.split.decode),
            format!("{:.3}", plan.lambda_max),
            base.map_or("-".to_owned(), |base| format!("{:.2} x", plan.lambda_max / base)),
            format!("{:.3}", judged.capacity_rps),
            format!("{:.1}", plan.offloaded_share * 100.0),
            format!("{:.1}", plan.egress.0 as f64 / 1e9),
            format!("{:.2}", plan.unloaded_ttft.as_secs_f64()),
            format!("{:.2}", judged.ttft_p90_s),
            held_by(plan.bottleneck).to_owned(),
        ]
    };
    let heading = [
        "fleet",
        "threshold",
        "P/D",
        "req/s",
        "gain",
        "in queues",
        "offl. %",
        "Gbit/s",
        "TTFT s",
        "P90 s",
        "held by",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec(), row("optimum", &study.best)];
    rows.extend(study.homogeneous.iter().map(|judged| row("homogeneous", judged)));
    rows.push(row("naive", &study.naive));
    aligned(&rows, Cells::Numbers)
}

fn threshold(plan: &Plan) -> String {
    if plan.offloaded_share > 0.0 {
        plan.threshold.0.to_string()
    } else {
        "-".to_owned()
    }
}

fn bandwidths(bandwidths: &[AtBandwidth]) -> Vec<String> {
    let heading = ["Gbit/s", "threshold", "P/D", "req/s", "held by", "kept plan"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(bandwidths.iter().map(|at| {
        let plan = &at.adapted;
        vec![
            format!("{:.1}", at.egress.0 as f64 / 1e9),
            threshold(plan),
            format!("{}/{}", plan.split.prefill, plan.split.decode),
            format!("{:.3}", plan.lambda_max),
            held_by(plan.bottleneck).to_owned(),
            format!("{:.3}", at.kept.lambda_max),
        ]
    }));
    aligned(&rows, Cells::Numbers)
}

/// The figures of the source beside those of this program.
pub(super) fn beside_the_source(rows: &[Compared]) -> Vec<String> {
    let mut table = vec![
        ["figure", "printed", "computed", "off"]
            .map(str::to_owned)
            .to_vec(),
    ];
    table.extend(rows.iter().map(|row| {
        let digits = row.digits;
        vec![
            row.name.to_owned(),
            format!("{:.digits$}", row.printed),
            format!("{:.1$}", row.computed, digits + 1),
            format!("{:+.1} %", (row.computed / row.printed - 1.0) * 100.0),
        ]
    }));
    let mut out = vec![String::new(), format!("beside the source, {SOURCE}:")];
    out.extend(aligned(&table, Cells::Numbers));
    out
}

/// What the columns of a table after the first hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cells {
    /// Numbers, written to the right.
    Numbers,
    /// Words, written to the left.
    Words,
}

/// A table; its first column is written to the left.
pub(super) fn aligned(rows: &[Vec<String>], cells: Cells) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..columns).map(width).collect();
    let written = |row: &Vec<String>| {
        let row = row.iter().zip(&widths).enumerate();
        let row: Vec<_> = row
            .map(|(column, (cell, width))| match cells {
                Cells::Numbers if column > 0 => format!("{cell:>width$}"),
                Cells::Numbers | Cells::Words => format!("{cell:<width$}"),
            })
            .collect();
        row.join("  ").trim_end().to_owned()
    };
    rows.iter().map(written).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::example::{compared, prfaas};

    #[test]
    fn a_study_is_told_with_every_table_and_curve() {
        let (profile, workload) = prfaas().unwrap();
        let found = Study::new(&profile, &workload, None).unwrap();
        let text = study(&found).join("\n");
        for part in [
            "offload uncached prompts over 19400 tokens; 3 local instances prefill, 5 decode",
            "3.247 req/s, held by remote prefill; 49.6 % of requests offloaded, 45046 tokens on average, 12.4 Gbit/s",
            "homogeneous          -  9/3  2.110  1.00 x",
            "naive                0  0/8  2.469  1.17 x",
            "Throughput against the bandwidth",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        let beside = beside_the_source(&compared(&found));
        assert!(
            beside
                .iter()
                .any(|row| row.starts_with("throughput, req/s") && row.ends_with("+0.2 %")),
            "{beside:#?}"
        );
    }

    #[test]
    fn a_plan_above_the_bound_is_explained() {
        let why = beyond(3.247, 3.186).expect("a reader wonders");
        assert!(
            why.contains("3.247 is more") && why.contains("time-of-mean"),
            "{why}"
        );
        assert_eq!(beyond(3.180, 3.186), None);
    }
}
