//! Policies are asked what goes where room runs out, each about its own, and what they say is written down.

use super::support::{ACME, App, GLOBEX, OPERATOR};
use crate::reaction::{PolicyReaction, PressureRules};
use portolan_base::{BlockId, Permille, TenantName};
use portolan_kv::Selector;
use portolan_policy::{
    Answer, Answered, BoundAs, Call, Directive, Event, Policy, PolicyDescriptor, PolicyFault, PolicySource,
    Question, QuestionKind, Scope,
};
use portolan_ports::Deciding;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// Says what it was made to say.
struct Says {
    descriptor: PolicyDescriptor,
    answer: Result<Vec<Directive>, PolicyFault>,
}

impl Says {
    fn policy(source: PolicySource, answer: Result<Vec<Directive>, PolicyFault>) -> Arc<dyn Policy> {
        Arc::new(Self {
            descriptor: PolicyDescriptor {
                question: QuestionKind::Invalidation,
                name: "says".to_owned(),
                version: "1".to_owned(),
                source,
                bound: BoundAs::default(),
            },
            answer,
        })
    }
}

impl Policy for Says {
    fn descriptor(&self) -> &PolicyDescriptor {
        &self.descriptor
    }
    fn ask(&self, call: &Call<'_>) -> Answered {
        let Question::Invalidation {
            event: Event::CapacityPressure(_),
            ..
        } = call.question
        else {
            panic!("{:?}", call.question)
        };
        Answered {
            result: self.answer.clone().map(Answer::Invalidation),
            fuel: None,
        }
    }
}

/// The app's pools and tiers hold a few thousandths of what they may: full, by these rules.
fn reaction(app: &App) -> PolicyReaction {
    let reaction = PolicyReaction::new(PressureRules {
        high: Permille(1),
        low: Permille(0),
        pause: Duration::from_secs(10),
    });
    reaction.attach(&app.site);
    reaction
}

fn bind(app: &App, scope: Scope, policy: Arc<dyn Policy>) {
    app.site
        .parts
        .desk
        .bind_for_test(scope, QuestionKind::Invalidation, policy);
}

fn tenant(name: &str) -> Scope {
    Scope::Tenant(TenantName::new(name).unwrap())
}

fn ids(goes: &[Selector]) -> Vec<u8> {
    let blocks = goes.iter().flat_map(|selector| match selector {
        Selector::Blocks(ids) => ids.iter().map(|BlockId(id)| id[0]).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    });
    let mut ids: Vec<u8> = blocks.collect();
    ids.sort_unstable();
    ids
}

async fn decisions(app: &App, key: &str) -> Vec<Value> {
    let reply = app.get(key, "/v1/portolan/kv/decisions").await;
    let body: Value = serde_json::from_slice(&reply.body).unwrap();
    body["data"].as_array().unwrap().clone()
}

#[tokio::test]
async fn nobody_is_asked_where_nobody_is_bound() {
    let app = App::new();
    assert!(reaction(&app).pressure().is_empty());
    assert!(decisions(&app, OPERATOR).await.is_empty());
}

#[tokio::test]
async fn a_tenants_policy_lets_go_of_its_own_and_of_nothing_public() {
    let app = App::new();
    let reaction = reaction(&app);
    let everything = Ok(vec![Directive::FreeMib(1)]);
    bind(
        &app,
        tenant("acme"),
        Says::policy(PolicySource::Tenant, everything.clone()),
    );
    bind(
        &app,
        tenant("globex"),
        Says::policy(PolicySource::Tenant, everything.clone()),
    );
    assert_eq!(ids(&reaction.pressure()), [1, 2], "globex has nothing here");
    assert!(reaction.pressure().is_empty(), "once within the pause");
    let of_acme = decisions(&app, ACME).await;
    let [one] = &of_acme[..] else {
        panic!("{of_acme:?}")
    };
    assert_eq!(
        (&one["whose"], &one["place"]["instance"], &one["blocks"]),
        (&"acme".into(), &"e1".into(), &2.into()),
        "{one}"
    );
    assert_eq!(one["policy"]["outcome"], "ok", "{one}");
    assert!(
        one["event"]["capacity-pressure"].is_object() && one["bytes"].as_u64() > Some(4000),
        "{one}"
    );
    assert!(decisions(&app, GLOBEX).await.is_empty(), "nobody else's");

    bind(
        &app,
        Scope::Platform,
        Says::policy(PolicySource::Platform, everything),
    );
    assert_eq!(
        ids(&reaction.pressure()),
        [1, 2, 9],
        "the platform's is asked about all"
    );
    let all = decisions(&app, OPERATOR).await;
    let whose: Vec<_> = all.iter().map(|one| one["whose"].as_str().unwrap()).collect();
    assert_eq!(whose, ["_platform", "_platform", "acme"], "one for each place");
    assert_eq!(all[0]["place"]["tier"], "host", "{all:?}");
    let page = app.get(OPERATOR, "/metrics").await;
    let page = String::from_utf8(page.body.to_vec()).unwrap();
    assert!(
        page.contains(r#"portolan_kv_pressure_questions_total{outcome="ok"} 3"#),
        "{page}"
    );
}

#[tokio::test]
async fn a_policy_that_fails_costs_its_default_and_says_so() {
    let app = App::new();
    let reaction = reaction(&app);
    let fails = Says::policy(PolicySource::Tenant, Err(PolicyFault::TimedOut(50)));
    bind(&app, tenant("acme"), fails);
    assert!(reaction.pressure().is_empty());
    let said = decisions(&app, ACME).await;
    assert_eq!(
        (&said[0]["policy"]["outcome"], &said[0]["blocks"]),
        (&"timed-out".into(), &0.into()),
        "{said:?}"
    );
    let counts = app.site.parts.desk.usage(&tenant("acme")).unwrap().policies;
    assert_eq!((counts[0].used.calls, counts[0].used.faults), (1, 1));
}
