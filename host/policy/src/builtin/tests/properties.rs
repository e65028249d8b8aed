//! Properties that hold for every policy and every input, however torn.

use super::*;
use crate::{NEVER, RouteView};
use proptest::prelude::*;

/// Small numbers, so that sites and modes meet; any number; and the largest ones.
fn cell() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0..4u32, 2 => 0..100_000u32, 1 => any::<u32>(), 1 => Just(NEVER), 1 => Just(NEVER - 1)]
}

fn cells() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(cell(), 0..200)
}

fn route_scores(name: &str, request: &[u32], routes: Matrix<'_>, costs: Matrix<'_>) -> Vec<u32> {
    let question = Question::Routing {
        request,
        routes,
        costs,
    };
    match ask(&*made(QuestionKind::Routing, name, ""), question) {
        Answer::Routing(RoutingDecision::Scores(scores)) => scores,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(seeded(300))]

    #[test]
    fn a_cost_row_a_route_whatever_the_input(request in cells(), stride in 0..40u32, routes in cells()) {
        let routes = Matrix::new(stride, &routes);
        for name in names(QuestionKind::Cost) {
            let question = Question::Cost { request: &request, routes };
            let Answer::Cost(costs) = ask(&*made(QuestionKind::Cost, name, ""), question) else { panic!() };
            prop_assert_eq!(costs.len(), routes.len() * crate::CostColumn::COUNT);
        }
    }

    #[test]
    fn a_score_a_route_and_no_route_that_was_ruled_out(
        request in cells(), stride in 0..40u32, routes in cells(), cost_stride in 0..10u32, costs in cells()
    ) {
        let (routes, costs) = (Matrix::new(stride, &routes), Matrix::new(cost_stride, &costs));
        let mode = crate::RequestView(&request).prefill_mode();
        for name in names(QuestionKind::Routing) {
            let scores = route_scores(name, &request, routes, costs);
            prop_assert_eq!(scores.len(), routes.len());
            let (mut worst_remote, mut best_local) = (None, NEVER);
            for (i, score) in scores.iter().enumerate() {
                let local = RouteView(routes.row(i).unwrap()).is_local();
                let ruled_out = costs.row(i).and_then(|row| row.first()) == Some(&NEVER)
                    || (mode == 1 && !local) || (mode == 3 && local);
                prop_assert_eq!(*score == NEVER, ruled_out, "{}: route {}", name, i);
                if !ruled_out && local {
                    best_local = best_local.min(*score);
                } else if !ruled_out {
                    worst_remote = worst_remote.max(Some(*score));
                }
            }
            prop_assert!(mode != 2 || worst_remote < Some(best_local), "{}", name);
        }
    }

    #[test]
    fn a_placement_a_site(data in cell(), request in cells()) {
        let subject = crate::Subject {
            purpose: crate::Purpose::Fetch, data_jurisdiction: data, data_class: 0, from_site: Some(data),
        };
        let question = Question::Residency { subject, request: &request, sites: 4 };
        let Answer::Residency(placements) = ask(&*made(QuestionKind::Residency, "jurisdiction", ""), question)
        else { panic!() };
        prop_assert_eq!(placements.len(), 4);
    }

    #[test]
    fn reactions_to_any_group_matrix(stride in 0..20u32, groups in cells(), used in cell(), limit in cell()) {
        let groups = Matrix::new(stride, &groups);
        let pressure = crate::Pressure { site: 0, used_mib: used, limit_mib: limit };
        for name in names(QuestionKind::Invalidation) {
            for event in [Event::TenantRemoved, Event::CapacityPressure(pressure), Event::PrefixRevoked(1)] {
                let question = Question::Invalidation { event: &event, groups };
                let Answer::Invalidation(directives) = ask(&*made(QuestionKind::Invalidation, name, ""), question)
                else { panic!() };
                if event == Event::TenantRemoved {
                    prop_assert_eq!(directives.len(), groups.len());
                }
            }
        }
    }

    #[test]
    fn no_configuration_text_panics(text in ".{0,80}") {
        for &(question, name) in BUILT_IN {
            let _ = policy(question, name, &text, &four_sites()).map(|p| p.descriptor().version.clone());
        }
    }
}
