//! Sites that go, links that change, tenants apart.

use super::*;

fn steady(sites: usize) -> Vec<SimRequest> {
    (0..400u64)
        .map(|i| SimRequest {
            arrival: Moment(i * 500_000),
            prompt_tokens: 8_000,
            output_tokens: 40,
            tenant: (i % sites as u64) as u32,
            blocks: vec![],
        })
        .collect()
}

#[test]
fn a_lost_site_costs_those_it_answers_and_delays_those_it_computes_for() {
    let mut scenario = two_sites(Tokens(0), "least-loaded");
    scenario.origins = vec![at(HOME)];
    let second = |s: u64| Moment(s * 1_000_000);
    scenario.changes = vec![
        Change {
            at: second(60),
            what: Happening::SiteLost(FAR),
        },
        Change {
            at: second(120),
            what: Happening::SiteBack(FAR),
        },
    ];
    let played = rehearse(&scenario, &steady(1), &VirtualClock::default()).unwrap();
    assert_eq!(
        (played.report.completed, played.report.refused.len()),
        (400, 0),
        "nothing is lost"
    );
    let far = |fate: &Fate| {
        let route = fate.outcome.as_ref().unwrap().route;
        scenario.instances[route.prefill.0 as usize].site == FAR
    };
    let shares = [0..118, 124..238, 244..400].map(|part| {
        let part = &played.fates[part];
        part.iter().filter(|fate| far(fate)).count() as f64 / part.len() as f64
    });
    assert!(
        shares[0] > 0.3 && shares[1] == 0.0 && shares[2] > 0.3,
        "{shares:?}"
    );
    // What was being computed there is decided anew once the loss is noticed.
    let delayed = played.fates[100..122].iter().any(|fate| {
        let served = fate.outcome.as_ref().unwrap();
        !far(fate) && served.queue >= Duration::from_secs(2)
    });
    assert!(delayed);

    // Where answers are made there, who waits for one is cut off, and later requests come in elsewhere.
    scenario.origins = vec![at(FAR), at(HOME)];
    let report = simulate(&scenario, &steady(1)).unwrap();
    let lost: u64 = report.refused.values().sum();
    assert!(
        report.refused.contains_key("its site was lost"),
        "{:?}",
        report.refused
    );
    assert!((1..20).contains(&lost), "{lost}");
    assert_eq!(report.completed + lost, 400);
}

#[test]
fn a_slower_link_and_losses_delay_what_crosses_it() {
    let mut scenario = prfaas(1, 0, 4);
    let play = |scenario: &Scenario| simulate(scenario, &steady(1)[2..42]).unwrap();
    let before = play(&scenario);
    scenario.changes = vec![Change {
        at: Moment(0),
        what: Happening::Link {
            ends: (FAR, HOME),
            capacity: BitsPerSecond(20_000_000_000),
            rtt: Duration::from_millis(40),
            loss: Permille(500),
        },
    }];
    let after = play(&scenario);
    // A tenth of 100 Gbit/s gets through.
    let size = Bytes(182_368_338 + 17_280 * 8_000);
    let slower = size.time_at(BitsPerSecond(10_000_000_000)) - size.time_at(BitsPerSecond(100_000_000_000));
    let more = after.ttft.mean - before.ttft.mean;
    let expected = slower.as_secs_f64() + 0.040;
    assert!((more - expected).abs() < 1e-3, "{more} for {expected}");
}

#[test]
fn each_tenant_has_its_part_of_the_report() {
    let mut scenario = prfaas(2, 2, 4);
    scenario.ttft_slo = Some(Duration::from_secs(2));
    let mut requests = steady(2);
    // The second one's prompts are long.
    let long = requests.iter_mut().filter(|request| request.tenant == 1);
    long.for_each(|request| request.prompt_tokens = 100_000);
    let report = simulate(&scenario, &requests).unwrap();
    let [short, long] = &report.tenants[..] else {
        panic!("{:?}", report.tenants)
    };
    assert_eq!((short.completed, long.completed), (200, 200));
    assert!(
        short.slo_attainment > 0.9 && long.slo_attainment == 0.0,
        "{:?}",
        report.tenants
    );
    let both = (short.slo_attainment + long.slo_attainment) / 2.0;
    assert!((report.slo_attainment - both).abs() < 1e-9);
    let means = [short.ttft.mean, long.ttft.mean];
    let jain = means.iter().sum::<f64>().powi(2) / 2.0 / means.iter().map(|m| m * m).sum::<f64>();
    assert!(
        (report.fairness - jain).abs() < 1e-6,
        "{} for {jain}",
        report.fairness
    );
}
