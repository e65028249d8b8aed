//! `portolan nats permissions`: what a NATS server has to allow each site of a configuration.

use super::output::{Failure, json, line};
use crate::config::Config;
use portolan_base::SiteName;
use portolan_fleet::nats::{Permissions, Subjects};
use std::fmt::Write;
use std::path::Path;

pub(super) fn permissions(file: &Path, as_json: bool) -> Result<(), Failure> {
    let config = Config::read(file).map_err(|e| Failure::new(e).as_json(as_json))?;
    let of = of_sites(&config).map_err(|e| e.as_json(as_json))?;
    if as_json {
        let allowed = |(site, Permissions { publish, subscribe }): &(SiteName, Permissions)| serde_json::json!({ "site": site, "publish": publish, "subscribe": subscribe });
        return json(&serde_json::json!({ "sites": of.iter().map(allowed).collect::<Vec<_>>() }));
    }
    line("# For nats-server, which takes passwords from its environment: let them begin with a letter.");
    line(authorization(&of, |site| format!("${}", variable(site))));
    Ok(())
}

/// What each site is allowed.
pub(super) fn of_sites(config: &Config) -> Result<Vec<(SiteName, Permissions)>, Failure> {
    let topology = config.topology().map_err(Failure::new)?;
    let subjects = Subjects::new(&config.fleet.name, &topology);
    let sites = config.sites.iter().map(|site| site.name.clone());
    Ok(sites
        .map(|site| (site.clone(), subjects.permissions(&site)))
        .collect())
}

/// The `authorization` of a server's configuration, with the users that the sites are.
pub(super) fn authorization(
    of: &[(SiteName, Permissions)],
    password: impl Fn(&SiteName) -> String,
) -> String {
    let mut text = "authorization: {\n  users: [\n".to_owned();
    for (site, Permissions { publish, subscribe }) in of {
        // Writing to a `String` does not fail.
        writeln!(
            text,
            "    {{user: {:?}, password: {}, permissions: {{\n      publish: {publish:?}\n      subscribe: {subscribe:?}\n    }}}}",
            site.as_str(),
            password(site)
        )
        .ok();
    }
    text.push_str("  ]\n}");
    text
}

fn variable(site: &SiteName) -> String {
    let letter = |c: char| match c.is_ascii_alphanumeric() {
        true => c.to_ascii_uppercase(),
        false => '_',
    };
    let name: String = site.as_str().chars().map(letter).collect();
    format!("{name}_PASSWORD")
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../../../examples/08-fleet/portolan.yaml");

    #[test]
    fn each_site_of_the_example_may_speak_for_itself() {
        let config = Config::parse(EXAMPLE).unwrap();
        let text = authorization(&of_sites(&config).unwrap(), |site| format!("${}", variable(site)));
        assert!(
            text.contains(r#"{user: "paris", password: $PARIS_PASSWORD, permissions: {"#),
            "{text}"
        );
        assert!(text.contains(r#"publish: ["demo.facts.jp.tokyo", "#), "{text}");
    }
}
