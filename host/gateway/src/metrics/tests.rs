//! What ends up on the metrics page.

use super::*;
use portolan_base::{RequestId, TenantName};
use portolan_decide::FleetView;
use portolan_decide::record::{FetchRecord, KvRecord, StageRecord};
use portolan_policy::{PolicyFault, PolicySource, QuestionKind};

fn record() -> PathRecord {
    PathRecord {
        request_id: RequestId::from_client("r").unwrap(),
        trace_id: None,
        tenant: TenantName::new("acme").unwrap(),
        model: "m".into(),
        accepted_ms: 0,
        prompt_tokens: 100,
        completion_tokens: 7,
        ttft_ms: Some(250.0),
        route: None,
        request: Default::default(),
        labels: Default::default(),
        candidates: Vec::new(),
        left_out: Vec::new(),
        policies: vec![PolicyRecord {
            question: QuestionKind::Cost,
            name: "ttft".into(),
            version: "built-in".into(),
            source: PolicySource::BuiltIn,
            micros: 12,
            fuel: None,
            outcome: "trap".into(),
            answer: None,
            detail: None,
            generation: None,
            config_digest: None,
        }],
        shadows: Vec::new(),
        verdicts: Vec::new(),
        placements: Vec::new(),
        stages: vec![StageRecord {
            name: "decode".into(),
            start_ms: 100.0,
            end_ms: 400.0,
        }],
        kv: KvRecord {
            bytes_moved: 4096,
            cached_tokens: 32,
            computed_tokens: 67,
            chunks_resent: 2,
            quantised: Some(portolan_base::kv::KvQuant::Int8),
        },
        fetches: vec![FetchRecord {
            site: "virginia".into(),
            instance: "v1".into(),
            to_site: "paris".into(),
            to_instance: "p1".into(),
            wanted_tokens: 32,
            tokens: 16,
            bytes: 2048,
            took_ms: 1.0,
            estimated_ms: 1.0,
            computing_ms: 2.0,
            failed: None,
        }],
        fallbacks: Vec::new(),
        status: "ok".into(),
        error: None,
    }
}

#[test]
fn a_record_is_counted_once_in_every_metric() {
    let metrics = Metrics::new();
    metrics.observe(&record());
    let text = metrics.render(3, &FleetView::default(), Vec::new());
    let work = r#"{tenant="acme",model="m"}"#;
    for line in [
        r#"portolan_requests_total{tenant="acme",model="m",outcome="ok"} 1"#.to_owned(),
        format!("portolan_time_to_first_token_seconds_sum{work} 0.25"),
        format!("portolan_request_duration_seconds_sum{work} 0.4"),
        r#"portolan_stage_duration_seconds_sum{stage="decode"} 0.3"#.to_owned(),
        format!("portolan_prompt_tokens_total{work} 100"),
        format!("portolan_completion_tokens_total{work} 7"),
        format!("portolan_cached_tokens_total{work} 32"),
        format!("portolan_kv_moved_bytes_total{work} 4096"),
        format!("portolan_kv_fetched_tokens_total{work} 16"),
        "portolan_kv_chunks_resent_total 2".to_owned(),
        format!("portolan_kv_quantised_requests_total{work} 1"),
        r#"portolan_policy_calls_total{question="cost",outcome="trap"} 1"#.to_owned(),
        r#"portolan_policy_call_duration_seconds_count{question="cost"} 1"#.to_owned(),
        "portolan_requests_in_flight 3".to_owned(),
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is missing:\n{text}");
    }
}

#[test]
fn words_that_are_in_no_list_make_no_series() {
    let metrics = Metrics::new();
    for i in 0..100 {
        let mut record = record();
        record.status = format!("status-{i}");
        record.stages[0].name = format!("stage-{i}");
        record.policies[0].outcome = format!("outcome-{i}");
        record.fallbacks = vec![portolan_decide::Fallback {
            stage: format!("s{i}"),
            from: String::new(),
            to: String::new(),
            reason: format!("reason-{i}"),
        }];
        metrics.observe(&record);
    }
    let text = metrics.render(0, &FleetView::default(), Vec::new());
    assert!(text.contains(r#"outcome="other"} 100"#), "{text}");
    assert!(
        text.contains(r#"portolan_fallbacks_total{stage="other",reason="other"} 100"#),
        "{text}"
    );
}

#[test]
fn a_fallback_is_named_by_what_failed() {
    use crate::copy::Uncopied;
    use portolan_base::Bytes;
    use portolan_ports::{EngineError, TransferError};
    let peer = portolan_base::SiteName::new("virginia").unwrap();
    let detail = || "d".to_owned();
    let reasons: [(String, &str); 18] = [
        (PolicyFault::Trap(detail()).to_string(), "trap"),
        (PolicyFault::OutOfFuel(1).to_string(), "out-of-fuel"),
        (PolicyFault::TimedOut(1).to_string(), "timed-out"),
        (PolicyFault::OutOfMemory(1).to_string(), "out-of-memory"),
        (PolicyFault::BadAnswer(detail()).to_string(), "bad-answer"),
        (PolicyFault::Saturated.to_string(), "saturated"),
        (PolicyFault::Unavailable(detail()).to_string(), "unavailable"),
        (TransferError::UnknownPeer(peer.clone()).to_string(), "link-down"),
        (
            TransferError::LinkDown {
                peer: peer.clone(),
                detail: detail(),
            }
            .to_string(),
            "link-down",
        ),
        (
            TransferError::Stalled {
                peer: peer.clone(),
                waited: Default::default(),
            }
            .to_string(),
            "stalled",
        ),
        (
            TransferError::Damaged {
                peer: peer.clone(),
                chunk: 1,
                attempts: 3,
            }
            .to_string(),
            "damaged",
        ),
        (
            TransferError::Quarantined { peer: peer.clone() }.to_string(),
            "quarantined",
        ),
        (
            TransferError::Late {
                peer: peer.clone(),
                deadline: Default::default(),
            }
            .to_string(),
            "late",
        ),
        (
            Uncopied::Residency {
                from: detail(),
                to: detail(),
            }
            .to_string(),
            "residency",
        ),
        (Uncopied::NoRoom { bytes: Bytes(1) }.to_string(), "no-room"),
        (
            TransferError::Refused {
                peer,
                detail: detail(),
            }
            .to_string(),
            "refused",
        ),
        (EngineError::Full(detail()).to_string(), "full"),
        (EngineError::Broken(detail()).to_string(), "engine-failed"),
    ];
    for (reason, word) in reasons {
        assert_eq!(labels::reason_word(&reason), word, "{reason}");
    }
}

#[test]
fn the_policy_runtimes_numbers_are_on_the_page() {
    use portolan_ports::{Reading, Sample};
    let sample = |name, tenant: &str, value| Sample {
        name,
        help: "Help",
        labels: vec![("tenant", tenant.to_owned())],
        value,
    };
    let times = Reading::Times {
        buckets: vec![(1e-6, 2), (f64::MAX, 1)],
        sum: 0.5,
    };
    let samples = vec![
        sample("policy_runtime_calls", "acme", Reading::Counter(3)),
        sample("policy_runtime_call_duration", "acme", times),
        sample("policy_runtime_calls", "globex", Reading::Counter(0)),
        sample("policy_runtime_live_instances", "acme", Reading::Gauge(8)),
    ];
    let text = Metrics::new().render(0, &FleetView::default(), samples);
    for line in [
        "# TYPE portolan_policy_runtime_calls counter",
        r#"portolan_policy_runtime_calls_total{tenant="acme"} 3"#,
        r#"portolan_policy_runtime_calls_total{tenant="globex"} 0"#,
        r#"portolan_policy_runtime_live_instances{tenant="acme"} 8"#,
        r#"portolan_policy_runtime_call_duration_seconds_sum{tenant="acme"} 0.5"#,
        r#"portolan_policy_runtime_call_duration_seconds_count{tenant="acme"} 3"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert_eq!(text.matches("# TYPE portolan_policy_runtime_calls ").count(), 1);
    assert!(text.ends_with("# EOF\n"));
}
