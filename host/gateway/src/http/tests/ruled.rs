//! What the operator rules holds for the next request, and changes while the site serves.

use super::support::{App, OPERATOR};
use crate::live::{Failover, Live, PrefillRule, Switch};
use portolan_base::{BitsPerSecond, InstanceName, Permille, SiteName, Tokens};
use portolan_decide::{LinkFigures, LinkView, SiteIndex, SiteView};
use serde_json::{Value, json};
use std::time::Duration;

/// A site whose own instance is slow, beside one that is fast and cannot be reached when it comes to it.
fn app() -> App {
    let app = App::new();
    let mut view = (*app.site.parts.fleet.view()).clone();
    view.sites.push(SiteView {
        name: SiteName::new("virginia").unwrap(),
        jurisdiction: 2,
    });
    view.instances[0].prefill_ns_per_token = 500_000_000;
    let mut there = view.instances[0].clone();
    there.name = InstanceName::new("v1").unwrap();
    there.site = SiteIndex(1);
    there.prefill_ns_per_token = 1;
    view.instances.push(there);
    let link = LinkView {
        up: true,
        rtt: Duration::from_millis(1),
        capacity: BitsPerSecond(100_000_000_000),
        busy: Permille(0),
        loss: Permille(0),
        price_micros_per_gib: 0,
        measured: LinkFigures::default(),
    };
    view.links.insert((SiteIndex(1), SiteIndex(0)), link);
    app.fleet.set_view(view);
    app
}

async fn served(app: &App, id: &str) -> (u16, Value) {
    let prompt = json!({"model": "fake", "prompt": "hello there", "temperature": 0, "request_id": id});
    let status = app.complete(prompt).await.status.as_u16();
    let record = app.get(OPERATOR, &format!("/v1/portolan/requests/{id}")).await;
    (status, record.json())
}

fn ruled(prefill: PrefillRule) -> Live {
    Live {
        prefill,
        ..Live::default()
    }
}

#[tokio::test]
async fn what_another_site_failed_is_computed_at_home_unless_that_is_not_wanted() {
    let app = app();
    let (status, record) = served(&app, "r1").await;
    assert_eq!(status, 200, "{record}");
    assert_eq!(record["fallbacks"][0]["from"], "prefill at virginia/v1");
    assert_eq!(record["route"]["prefill_site"], "paris");

    app.site.apply(ruled(PrefillRule {
        failover: Failover::Never,
        ..PrefillRule::default()
    }));
    let (status, record) = served(&app, "r2").await;
    assert_eq!(status, 503, "{record}");
    assert_eq!(record["fallbacks"][0]["to"], "no route left");
}

#[tokio::test]
async fn prompts_below_the_threshold_stay_at_home_and_others_go_where_that_is_preferred() {
    let app = app();
    let mode = async |id, long, prefer_remote| {
        app.site.apply(ruled(PrefillRule {
            long_context: Some(Tokens(long)),
            prefer_remote,
            ..PrefillRule::default()
        }));
        let record = served(&app, id).await.1;
        (
            record["request"]["prefill_mode"].clone(),
            record["fallbacks"].as_array().unwrap().len(),
        )
    };
    assert_eq!(
        mode("r1", 1000, true).await,
        (json!(1), 0),
        "local_only, and nothing is tried elsewhere"
    );
    assert_eq!(mode("r2", 1, true).await, (json!(2), 1), "remote_preferred");
    assert_eq!(mode("r3", 1, false).await, (json!(0), 1), "left to the policies");
}

#[tokio::test]
async fn without_traces_no_path_is_kept() {
    let app = App::new();
    app.site.apply(Live {
        tracing: Switch::Off,
        metrics: Switch::Off,
        ..Live::default()
    });
    let prompt = json!({"model": "fake", "prompt": "hello", "temperature": 0, "request_id": "r1"});
    assert_eq!(app.complete(prompt).await.status, 200);
    assert_eq!(app.get(OPERATOR, "/v1/portolan/requests/r1").await.status, 404);
    assert_eq!(app.get("", "/metrics").await.status, 404);
}
