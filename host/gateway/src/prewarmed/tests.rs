//! Whose prompts are known, for how long, and who gives way.

use super::*;

const NOW: Moment = Moment(1_000_000);

fn prompt(tenant: &str, bytes: usize, seconds: u64) -> Prewarmed<usize> {
    Prewarmed {
        tenant: TenantName::new(tenant).unwrap(),
        model: ModelName::new("m").unwrap(),
        content: bytes,
        bytes,
        until: NOW + Duration::from_secs(seconds),
    }
}

fn known(prompts: &PrewarmedPrompts<usize>, id: &str, tenant: &str, now: Moment) -> bool {
    let (tenant, model) = (TenantName::new(tenant).unwrap(), ModelName::new("m").unwrap());
    prompts.of(id, &tenant, &model, now).is_ok()
}

#[test]
fn is_its_tenants_for_its_time_and_its_models() {
    let prompts = PrewarmedPrompts::default();
    prompts.keep("a".into(), prompt("acme", 5, 10), NOW).unwrap();
    assert!(known(&prompts, "a", "acme", NOW));
    assert!(!known(&prompts, "a", "globex", NOW));
    assert!(!known(&prompts, "a", "acme", NOW + Duration::from_secs(10)));
    let other = ModelName::new("n").unwrap();
    let refused = prompts
        .of("a", &TenantName::new("acme").unwrap(), &other, NOW)
        .unwrap_err();
    assert!(
        refused.message.contains("of the model m, not of n"),
        "{refused:?}"
    );
}

#[test]
fn goes_with_its_tenant_and_with_its_models_version() {
    let prompts = PrewarmedPrompts::default();
    let keep = |id: &str, tenant| prompts.keep(id.into(), prompt(tenant, 5, 10), NOW).unwrap();
    keep("a", "acme");
    keep("g", "globex");
    let tenant = TenantName::new("acme").unwrap();
    prompts.applied(&Invalidated::Tenant {
        scope: Scope::Tenant(tenant),
    });
    assert!(!known(&prompts, "a", "acme", NOW) && known(&prompts, "g", "globex", NOW));
    let model = |name| Invalidated::Model {
        model: ModelName::new(name).unwrap(),
    };
    prompts.applied(&model("n"));
    assert!(known(&prompts, "g", "globex", NOW));
    prompts.applied(&model("m"));
    assert!(!known(&prompts, "g", "globex", NOW));
}

#[test]
fn a_tenant_pushes_out_its_own_only_those_that_end_first() {
    let prompts = PrewarmedPrompts::default();
    let half = TENANT_BYTES / 2;
    prompts
        .keep("other".into(), prompt("globex", half, 1), NOW)
        .unwrap();
    prompts
        .keep("long".into(), prompt("acme", half, 90), NOW)
        .unwrap();
    prompts
        .keep("short".into(), prompt("acme", half, 10), NOW)
        .unwrap();
    prompts.keep("new".into(), prompt("acme", half, 50), NOW).unwrap();
    let left = ["other", "long", "short", "new"]
        .map(|id| known(&prompts, id, if id == "other" { "globex" } else { "acme" }, NOW));
    assert_eq!(left, [true, true, false, true]);
    assert!(
        prompts
            .keep("huge".into(), prompt("acme", TENANT_BYTES + 1, 9), NOW)
            .is_err()
    );
    assert!(
        known(&prompts, "long", "acme", NOW),
        "what is refused pushes nothing out"
    );
}

/// Sixty-four tenants with their share of the site each.
fn full(prompts: &PrewarmedPrompts<usize>) {
    for n in 0..64 {
        let share = prompt(&format!("t{n}"), SITE_BYTES / 64, 10);
        prompts.keep(format!("{n}"), share, NOW).unwrap();
    }
}

#[test]
fn a_full_site_refuses_whoever_would_have_most_and_recovers() {
    let prompts = PrewarmedPrompts::default();
    full(&prompts);
    let one_more = |bytes, now| prompts.keep("x".into(), prompt("late", bytes, 99), now);
    let more_than_a_share = SITE_BYTES / 64 + 1;
    let refused = one_more(more_than_a_share, NOW).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unavailable);
    assert!((0..64).all(|n| known(&prompts, &format!("{n}"), &format!("t{n}"), NOW)));
    one_more(more_than_a_share, NOW + Duration::from_secs(10)).unwrap();
}

#[test]
fn a_few_tenants_that_fill_the_site_give_way_to_another() {
    let prompts = PrewarmedPrompts::default();
    let large = TENANT_BYTES / 4;
    for n in 0..SITE_BYTES / large {
        let (tenant, ends) = (format!("t{}", n / 4), 10 + n as u64);
        prompts
            .keep(format!("{n}"), prompt(&tenant, large, ends), NOW)
            .unwrap();
    }
    prompts
        .keep("x".into(), prompt("late", 1, 10), NOW)
        .expect("eight tenants cannot keep a ninth out");
    assert!(known(&prompts, "x", "late", NOW));
    let left = (0..32_usize).filter(|n| known(&prompts, &format!("{n}"), &format!("t{}", n / 4), NOW));
    let gone: Vec<_> = (0..32_usize)
        .filter(|n| !known(&prompts, &format!("{n}"), &format!("t{}", n / 4), NOW))
        .collect();
    assert_eq!(left.count(), 31, "one of them made room: {gone:?}");
    assert!(
        gone[0].is_multiple_of(4),
        "the one that ends first of its tenant: {gone:?}"
    );
}

#[test]
fn small_prompts_are_bounded_by_their_number() {
    let prompts = PrewarmedPrompts::default();
    let small = |n: usize| prompts.keep(format!("{n}"), prompt("acme", 1, 10 + n as u64), NOW);
    (0..=TENANT_PROMPTS).for_each(|n| small(n).unwrap());
    assert!(!known(&prompts, "0", "acme", NOW));
    assert!(known(&prompts, "1", "acme", NOW));
    assert_eq!(
        prompts.0.lock().count_of(&TenantName::new("acme").unwrap()),
        TENANT_PROMPTS
    );
}

#[test]
fn a_thousand_small_prompts_make_room_for_a_large_one() {
    let prompts = PrewarmedPrompts::default();
    for tenant in 0..8 {
        for n in 0..TENANT_PROMPTS {
            let small = prompt(
                &format!("t{tenant}"),
                TENANT_BYTES / TENANT_PROMPTS,
                n as u64 + 10,
            );
            prompts.keep(format!("{tenant}-{n}"), small, NOW).unwrap();
        }
    }
    prompts
        .keep("large".into(), prompt("t3", TENANT_BYTES, 10), NOW)
        .unwrap();
    assert!(known(&prompts, "large", "t3", NOW));
    let of = |name: &str| prompts.0.lock().count_of(&TenantName::new(name).unwrap());
    assert_eq!((of("t3"), of("t2")), (1, TENANT_PROMPTS));
}

#[test]
fn nothing_is_left_of_what_was_forgotten_each_way() {
    let prompts = PrewarmedPrompts::default();
    let fill = || {
        for n in 0..10 {
            let of = prompt(&format!("t{}", n % 3), n, 10 + n as u64);
            prompts.keep(format!("{n}"), of, NOW).unwrap();
        }
        let again = prompt("t1", 77, 5);
        prompts
            .keep("0".into(), again, NOW)
            .expect("an id that is given again names the later prompt");
    };
    fill();
    prompts.0.lock().forget_until(NOW + Duration::from_secs(60));
    assert!(prompts.0.lock().is_empty());
    fill();
    prompts.applied(&Invalidated::Model {
        model: ModelName::new("m").unwrap(),
    });
    assert!(prompts.0.lock().is_empty());
    fill();
    for n in 0..3 {
        let tenant = TenantName::new(&format!("t{n}")).unwrap();
        prompts.applied(&Invalidated::Tenant {
            scope: Scope::Tenant(tenant),
        });
    }
    assert!(prompts.0.lock().is_empty());
}
