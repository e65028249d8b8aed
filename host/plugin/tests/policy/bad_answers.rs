//! Answers that cannot be used, and answers that are cut to size.

use crate::guests::Guest;
use crate::hostile::{fault_of, policy};
use crate::support::{Routing, loader};
use portolan_policy::{Answer, PolicyFault, RoutingDecision};

/// Ends `decide` with this decision: discriminant, two words of payload.
pub(crate) fn answer(discriminant: u32, first: u32, second: u32) -> String {
    format!(
        "(i32.store8 (i32.const 1040) (i32.const {discriminant})) (i32.store (i32.const 1044) (i32.const {first}))
         (i32.store (i32.const 1048) (i32.const {second})) (return (i32.const 1040))"
    )
}

#[test]
fn answers_of_the_wrong_length_are_refused_with_numbers() {
    for length in [0, 63, 65] {
        let fault = fault_of(&Guest::hostile(&answer(0, 2048, length)));
        let PolicyFault::BadAnswer(text) = fault else {
            panic!("{fault:?}")
        };
        assert_eq!(
            text,
            format!("{length} scores instead of 64 (one for each route)")
        );
    }
}

#[test]
fn answers_that_are_not_there_are_refused() {
    for (what, deed) in [
        ("a list beyond memory", answer(0, 0xffff_fff0, 64)),
        ("a misaligned list", answer(0, 2049, 64)),
        ("a decision of no known kind", answer(9, 0, 0)),
        (
            "a decision beyond memory",
            "(return (i32.const 0x7fff0000))".into(),
        ),
        ("a reason beyond memory", answer(2, 0x7fff_0000, 10)),
    ] {
        let fault = fault_of(&Guest::hostile(&deed));
        assert!(matches!(fault, PolicyFault::BadAnswer(_)), "{what}: {fault:?}");
    }
}

#[test]
fn a_million_scores_are_not_copied() {
    let guest = Guest {
        pages: 70,
        ..Guest::hostile(&answer(0, 8, 1_000_000))
    };
    let fault = fault_of(&guest);
    assert!(
        matches!(&fault, PolicyFault::BadAnswer(text) if text.contains("too much data")),
        "{fault:?}"
    );
}

#[test]
fn a_reason_that_is_not_text_is_refused() {
    let deed = format!(
        "(i32.store (i32.const 2048) (i32.const 0x80fffeff)) {}",
        answer(2, 2048, 4)
    );
    let fault = fault_of(&Guest::hostile(&deed));
    assert!(
        matches!(&fault, PolicyFault::BadAnswer(text) if text.contains("utf-8")),
        "{fault:?}"
    );
}

#[test]
fn a_long_reason_is_cut_and_a_long_deferral_shortened() {
    let loader = loader();
    let fill = "(memory.fill (i32.const 2048) (i32.const 120) (i32.const 5000))";
    let long = policy(
        &loader,
        &Guest::hostile(&format!("{fill} {}", answer(2, 2048, 5000))),
    );
    let refused = Routing::new(1, &[1]).ask(&*long).result;
    assert_eq!(
        refused,
        Ok(Answer::Routing(RoutingDecision::Refuse("x".repeat(512))))
    );
    let late = policy(&loader, &Guest::hostile(&answer(1, u32::MAX, 0)));
    let deferred = Routing::new(1, &[1]).ask(&*late).result;
    assert_eq!(deferred, Ok(Answer::Routing(RoutingDecision::Defer(10_000))));
}
