//! Which sites a process runs, its secret, its login: what is taken, and what is refused by name.

use super::*;

const TWO: &str = "
data_dir: data
operator_keys: [op]
models: []
sites:
  - {name: paris, jurisdiction: eu, listen: '127.0.0.1:0', instances: []}
  - {name: virginia, jurisdiction: us, listen: '127.0.0.1:0', transport: '127.0.0.1:7401', instances: []}
links: [{from: virginia, to: paris, capacity_mbps: 1000}]
run: [paris]
fleet: {nats: {servers: ['nats://127.0.0.1:4222']}}
";

fn site(name: &str) -> SiteName {
    SiteName::new(name).unwrap()
}

#[test]
fn a_process_runs_the_sites_it_is_told_to() {
    let config = Config::parse(TWO).unwrap();
    let here: Vec<_> = config.sites_here().map(|site| site.name.as_str()).collect();
    assert_eq!(here, ["paris"]);
    assert_eq!(config.topology().unwrap().sites().len(), 2, "it knows the others");
    let config = config.running(vec![site("virginia")]).unwrap();
    assert!(config.runs(&site("virginia")) && !config.runs(&site("paris")));
    assert!(config.running(vec![site("mars")]).is_err());
    let alone = TWO.replace("run: [paris]\n", "");
    assert_eq!(Config::parse(&alone).unwrap().sites_here().count(), 2);
}

#[test]
fn each_mistake_is_named_with_its_place() {
    for (from, to, expected) in [
        (
            "run: [paris]",
            "run: [mars]",
            "run: there is no site mars; defined are: paris, virginia",
        ),
        ("fleet: {nats", "fleet: {nuts", "nuts"),
        (
            "fleet: {nats: {servers: ['nats://127.0.0.1:4222']}}",
            "fleet: {}",
            "fleet.nats: site virginia runs in another process",
        ),
        (
            "transport: '127.0.0.1:7401', ",
            "",
            "sites.virginia.transport: 127.0.0.1:0 is no address",
        ),
        (
            "transport: '127.0.0.1:7401'",
            "plaintext: true, transport: '[::]:7401'",
            "sites.virginia.transport: [::]:7401",
        ),
        ("['nats://127.0.0.1:4222']", "[]", "fleet.nats.servers"),
        ("4222']", "4222'], replicas: 2", "fleet.nats.replicas"),
        (
            "4222']",
            "4222'], user: a",
            "fleet.nats.user: `user` and `password_file`",
        ),
        (
            "4222']",
            "4222'], token_file: a, credentials: b",
            "fleet.nats.user: take one",
        ),
        ("4222']", "4222'], tls: {key: a}", "fleet.nats.tls.certificate"),
        (
            "fleet: {",
            "fleet: {lease_ms: 1999, ",
            "fleet.lease_ms: at least 2000",
        ),
        ("fleet: {", "fleet: {name: '', ", "fleet.name"),
    ] {
        assert!(TWO.contains(from), "{from}");
        let error = Config::parse(&TWO.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.contains(expected), "{to}: {error}");
    }
}

#[test]
fn a_site_behind_another_address_advertises_it() {
    let text = TWO.replace(
        "transport: '127.0.0.1:7401'",
        "plaintext: true, transport: '[::]:7401', advertise: '10.0.0.2:7401'",
    );
    let config = Config::parse(&text).unwrap();
    assert_eq!(config.sites[1].reached_at().to_string(), "10.0.0.2:7401");
}

#[test]
fn one_file_serves_every_process() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("paris.password"), "geheim\n").unwrap();
    let text = TWO.replace(
        "4222']",
        "4222'], user: 'site-{site}', password_file: '{site}.password'",
    );
    let mut config = Config::parse(&text).unwrap();
    config.resolve_paths(folder.path());
    let NatsLogin::Password { user, file } = config.bus().unwrap().unwrap().login else {
        panic!("a user");
    };
    assert_eq!(user, "site-paris");
    assert_eq!(file, folder.path().join("paris.password"));
    let other = config.running(vec![site("virginia")]).unwrap();
    let error = other.bus().unwrap_err().to_string();
    assert!(error.contains("virginia.password"), "{error}");
}

#[test]
fn a_secret_is_64_hex_digits_and_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    std::fs::write(&file, format!("{}\n", "0f".repeat(32))).unwrap();
    let mut fleet = FleetConfig {
        secret_file: Some(file.clone()),
        ..FleetConfig::default()
    };
    let secret = fleet.secret().unwrap().unwrap();
    assert_eq!(secret.bytes(), [15; 32]);
    assert_eq!(format!("{secret:?}"), "FleetSecret(..)");
    std::fs::write(&file, "0f0f").unwrap();
    let error = fleet.secret().unwrap_err().to_string();
    assert!(
        error.contains("64 hex digits") && !error.contains("0f0f"),
        "{error}"
    );
    fleet.secret = Some(secret);
    assert_eq!(
        fleet.secret().unwrap(),
        Some(secret),
        "what was given goes before the file"
    );
}
