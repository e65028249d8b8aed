//! One well-behaved guest for each world, and what a guest may call.

use crate::guests::{CONFIGURED, Guest, LABEL_GET, LOG, STATE_ADD};
use crate::support::{Routing, binding, load, loader, tenant};
use portolan_policy::{
    Answer, Call, CostColumn, Directive, Event, GroupColumn, Matrix, ModelChange, Placement, PolicyFault,
    PolicySource, Purpose, Question, QuestionKind, RoutingDecision, Scope, Subject,
};
use portolan_ports::{LogLevel, LogOccasion, PolicyLoader};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

#[test]
fn a_cost_policy_answers_a_matrix_of_six_columns() {
    let loader = loader();
    let component = Guest::cost().component();
    let policy = loader
        .load(
            &binding(Scope::Platform, QuestionKind::Cost, &component),
            &component,
            None,
        )
        .unwrap();
    let answered = policy.ask(&Routing::new(0, &[10, 20]).cost_call());
    let mut expected = vec![0; 2 * CostColumn::COUNT];
    (expected[0], expected[CostColumn::COUNT]) = (10, 20);
    assert_eq!(answered.result, Ok(Answer::Cost(expected)));
    assert!(
        answered.fuel.is_some_and(|fuel| fuel > 0 && fuel < 2_000),
        "{:?}",
        answered.fuel
    );
    assert_eq!(policy.descriptor().source, PolicySource::Platform);
}

#[test]
fn no_routes_are_a_question_like_any_other() {
    let loader = loader();
    let policy = load(&loader, "t", &Guest::echo().component()).unwrap();
    let answered = Routing::new(0, &[]).ask(&*policy);
    assert_eq!(
        answered.result,
        Ok(Answer::Routing(RoutingDecision::Scores(vec![])))
    );
}

#[test]
fn a_residency_policy_answers_a_placement_for_each_site() {
    let loader = loader();
    let component = Guest::residency().component();
    let bound = binding(tenant("t"), QuestionKind::Residency, &component);
    let policy = loader.load(&bound, &component, None).unwrap();
    let ask = |sites| {
        let subject = Subject {
            purpose: Purpose::Fetch,
            data_jurisdiction: 1,
            data_class: 0,
            from_site: Some(2),
        };
        let question = Question::Residency {
            subject,
            request: &[],
            sites,
        };
        policy
            .ask(&Call {
                question,
                labels: &BTreeMap::new(),
                request_id: "",
            })
            .result
    };
    assert_eq!(
        ask(3),
        Ok(Answer::Residency(vec![
            Placement::Transient,
            Placement::Resident,
            Placement::Denied
        ]))
    );
    let Err(PolicyFault::BadAnswer(text)) = ask(4) else {
        panic!("three placements passed for four sites")
    };
    assert_eq!(text, "3 placements instead of 4 (one for each site)");
}

#[test]
fn an_invalidation_policy_reads_the_event() {
    let loader = loader();
    let component = Guest::invalidation().component();
    let bound = binding(tenant("t"), QuestionKind::Invalidation, &component);
    let policy = loader.load(&bound, &component, None).unwrap();
    let ask = |event: &Event| {
        let groups = Matrix::new(GroupColumn::COUNT as u32, &[]);
        let question = Question::Invalidation { event, groups };
        policy
            .ask(&Call {
                question,
                labels: &BTreeMap::new(),
                request_id: "",
            })
            .result
    };
    let change = ModelChange {
        model: 4,
        old_version: 1,
        new_version: 1 << 40,
    };
    let floor = Directive::BelowVersion {
        model: 4,
        version: 1 << 40,
    };
    assert_eq!(
        ask(&Event::ModelUpdated(change)),
        Ok(Answer::Invalidation(vec![floor]))
    );
    assert_eq!(ask(&Event::Tick(5)), Ok(Answer::Invalidation(vec![])));
}

#[test]
fn a_component_is_only_asked_its_own_question() {
    let loader = loader();
    let policy = load(&loader, "t", &Guest::echo().component()).unwrap();
    let answered = policy.ask(&Routing::new(0, &[1]).cost_call());
    assert!(
        matches!(answered.result, Err(PolicyFault::Unavailable(_))),
        "{answered:?}"
    );
}

#[test]
fn state_outlives_instances_and_versions_and_is_not_shared() {
    let count = "(i32.store8 (i32.const 1040) (i32.const 1))
        (i32.store (i32.const 1044) (i32.wrap_i64 (call $add (i32.const 1024) (i32.const 1) (i64.const 1))))
        (return (i32.const 1040))";
    let counter = |padding: &str| {
        let deed = format!("{padding} {count}");
        Guest {
            imports: STATE_ADD,
            ..Guest::hostile(&deed)
        }
        .component()
    };
    let loader = loader();
    let ask = |policy: &Arc<dyn portolan_policy::Policy>| match Routing::new(1, &[1]).ask(&**policy).result {
        Ok(Answer::Routing(RoutingDecision::Defer(n))) => n,
        other => panic!("{other:?}"),
    };
    let first = load(&loader, "a", &counter("")).unwrap();
    assert_eq!((ask(&first), ask(&first)), (1, 2));
    let second = load(&loader, "a", &counter("nop")).unwrap();
    assert_eq!(ask(&second), 3, "a new version begins where the old one was");
    assert_eq!(
        ask(&load(&loader, "b", &counter("")).unwrap()),
        1,
        "another tenant"
    );
}

#[test]
fn labels_are_read_by_name() {
    // Refuses with the label `team`, which the guest spells at 2048.
    let deed = "(i32.store (i32.const 2048) (i32.const 0x6d616574))
        (call $label (i32.const 2048) (i32.const 4) (i32.const 3000))
        (i32.store8 (i32.const 1040) (i32.const 2))
        (i32.store (i32.const 1044) (i32.load (i32.const 3004)))
        (i32.store (i32.const 1048) (i32.load (i32.const 3008)))
        (return (i32.const 1040))";
    let loader = loader();
    let guest = Guest {
        imports: LABEL_GET,
        ..Guest::hostile(deed)
    };
    let policy = load(&loader, "t", &guest.component()).unwrap();
    let answered = Routing::new(1, &[1]).ask(&*policy);
    assert_eq!(
        answered.result,
        Ok(Answer::Routing(RoutingDecision::Refuse("red".into())))
    );
}

/// Collects what `tracing` is given.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "portolan::policy"
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!("{field}={value:?} ");
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn log_lines_say_whose_they_are_and_are_rationed() {
    // Forty lines of 300 bytes, then the usual answer.
    let deed = "(memory.fill (i32.const 2048) (i32.const 120) (i32.const 300))
        (local.set $i (i32.const 40))
        (loop $again
            (call $log (i32.const 2) (i32.const 2048) (i32.const 300))
            (br_if $again (local.tee $i (i32.sub (local.get $i) (i32.const 1)))))";
    let loader = loader();
    let guest = Guest {
        imports: LOG,
        ..Guest::hostile(deed)
    };
    let policy = load(&loader, "t", &guest.component()).unwrap();
    let lines = Lines::default();
    let answered =
        tracing::subscriber::with_default(lines.clone(), || Routing::new(1, &[3; 64]).ask(&*policy));
    assert_eq!(
        answered.result,
        Ok(Answer::Routing(RoutingDecision::Scores(vec![3; 64])))
    );
    let lines = lines.0.lock().unwrap();
    assert_eq!(lines.len(), 16, "lines of one call");
    for part in [
        "scope=tenant t",
        "question=routing",
        "policy=\"test\"",
        "version=",
        "request=\"req-1\"",
    ] {
        assert!(lines[0].contains(part), "{part} is missing in {}", lines[0]);
    }
    assert!(lines[0].contains(&"x".repeat(256)) && !lines[0].contains(&"x".repeat(257)));

    let kept = loader.log_lines(&tenant("t"));
    assert_eq!(kept.len(), 16, "their author sees the same");
    assert_eq!(
        (&*kept[0].request_id, kept[0].level, kept[0].during),
        ("req-1", LogLevel::Warn, LogOccasion::Serving)
    );
    assert_eq!(kept[0].text, "x".repeat(256));
    for other in [tenant("u"), Scope::Platform] {
        assert_eq!(loader.log_lines(&other), [], "{other}");
    }
}

#[test]
fn configure_gets_the_bindings_text_and_may_refuse_it() {
    // Refuses any configuration that does not begin with `{`, with the configuration itself as the reason.
    let configure = format!(
        "(if (i32.or (i32.eqz (local.get 1)) (i32.ne (i32.load8_u (local.get 0)) (i32.const 123))) (then
            (i32.store8 (i32.const 1024) (i32.const 1))
            (i32.store (i32.const 1028) (local.get 0)) (i32.store (i32.const 1032) (local.get 1))))
         {CONFIGURED}"
    );
    let component = Guest {
        configure,
        ..Guest::echo()
    }
    .component();
    let loader = loader();
    let with = |config: &str| {
        let mut bound = binding(tenant("t"), QuestionKind::Routing, &component);
        bound.config = config.into();
        loader.load(&bound, &component, None).map(|_| ())
    };
    assert_eq!(with("{\"a\":1}"), Ok(()));
    let report = with("nonsense").unwrap_err().0;
    let finding = report.findings.last().unwrap();
    assert_eq!(finding.code, "configuration-refused");
    assert!(
        finding.message.ends_with("refused its configuration: nonsense"),
        "{}",
        finding.message
    );
    assert_eq!(with(&format!("{{{}", "x".repeat(65_535))), Ok(()), "64 KiB");
    let report = with(&format!("{{{}", "x".repeat(65_536))).unwrap_err().0;
    assert_eq!(report.findings.last().unwrap().code, "configuration-too-large");
    let report = loader.check(None, &component, None);
    assert!(
        report.ok && report.findings.iter().all(|f| f.code != "not-probed"),
        "{report:?}"
    );
}
