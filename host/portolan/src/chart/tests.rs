//! Charts: what is drawn, where it is written, and what is refused.

use super::*;

fn chart(across: Axis, points: Vec<(f64, f64)>) -> Chart {
    Chart {
        name: "rate",
        title: "What is served".to_owned(),
        across,
        up: "req/s".to_owned(),
        lines: vec![Line {
            label: "best <of> all".to_owned(),
            points,
        }],
    }
}

fn rising() -> Chart {
    chart(
        Axis::linear("tokens"),
        vec![(0.0, 0.0), (50.0, 2.0), (100.0, 4.0)],
    )
}

#[test]
fn a_line_is_drawn_from_corner_to_corner() {
    let drawn = rising().terminal();
    assert_eq!(drawn[0], "What is served");
    assert!(
        drawn[1].starts_with("    4.00 |") && drawn[1].ends_with('*'),
        "{drawn:#?}"
    );
    let bottom = &drawn[14];
    assert!(bottom.starts_with("       0 |*"), "{bottom}");
    // One mark a column.
    assert_eq!(
        drawn[1..15]
            .iter()
            .flat_map(|row| row.chars())
            .filter(|c| *c == '*')
            .count(),
        64
    );
    assert_eq!(
        drawn.last().unwrap().trim(),
        "req/s against tokens: * best <of> all"
    );
    assert!(drawn.iter().all(|row| row.chars().count() <= 80));
}

#[test]
fn a_logarithmic_axis_gives_each_factor_the_same_width() {
    let points = vec![(0.0, 9.0), (1.0, 0.0), (10.0, 0.0), (10.1, 4.0), (100.0, 4.0)];
    let drawn = chart(Axis::logarithmic("Gbit/s"), points).terminal();
    // The point at zero is left out, and the step lies in the middle.
    let top = drawn[1].split('|').nth(1).unwrap();
    assert_eq!(drawn[1].split_whitespace().next(), Some("4.00"));
    assert!((32..=33).contains(&top.find('*').unwrap()), "{drawn:#?}");
}

#[test]
fn an_svg_document_holds_title_axes_and_a_line_and_escapes_text() {
    let svg = rising().svg().unwrap();
    for part in [
        "<svg ",
        "What is served",
        "tokens",
        "req/s",
        "best &lt;of&gt; all",
        "<polyline ",
    ] {
        assert!(svg.contains(part), "{part}: {svg}");
    }
    assert_eq!(svg, rising().svg().unwrap(), "the same each time");
}

#[test]
fn nothing_to_draw_is_said() {
    for points in [
        vec![],
        vec![(0.0, 0.0)],
        vec![(f64::NAN, 1.0), (1.0, f64::INFINITY)],
    ] {
        let chart = chart(Axis::linear("tokens"), points);
        assert!(matches!(chart.svg(), Err(ChartError::Empty("rate"))));
        assert!(chart.terminal().is_empty());
    }
}

#[test]
fn charts_go_into_a_folder_or_into_files_of_one_stem() {
    let dir = tempfile::tempdir().unwrap();
    let two = [
        rising(),
        Chart {
            name: "other",
            ..rising()
        },
    ];
    let names = |path: &Path, charts: &[Chart]| {
        let written = write_svg(path, charts).unwrap();
        written.iter().for_each(|file| assert!(file.exists()));
        written
    };
    let at = |name: &str| dir.path().join(name);
    assert_eq!(
        names(&at("plots"), &two),
        [at("plots/rate.svg"), at("plots/other.svg")]
    );
    assert_eq!(names(&at("one.svg"), &two[..1]), [at("one.svg")]);
    assert_eq!(
        names(&at("both.svg"), &two),
        [at("both-rate.svg"), at("both-other.svg")]
    );
    let refused = write_svg(&at("missing/one.svg"), &two[..1])
        .unwrap_err()
        .to_string();
    assert!(refused.contains("missing/one.svg"), "{refused}");
}
