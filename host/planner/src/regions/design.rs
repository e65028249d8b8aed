//! Designs a set-up: residency, then reach, then capacity, then the bill.

use super::queue::wait_at;
use super::{
    Bill, Crossing, Design, Failover, NoDesign, Obstacle, Partition, RegionIndex, RegionLink, RegionsCase,
    Served, Site, SiteOffer, Way, break_even, fetch_break_even,
};
use portolan_base::{Bytes, Tokens};
use std::collections::BTreeMap;
use std::time::Duration;

/// Hours of a month, for the bill.
const MONTH_HOURS: f64 = 730.0;

/// Bytes of a token as text: a token of English is some four characters.
const TEXT_BYTES: f64 = 4.0;

/// Designs the set-up: the first site of each region's list serves it.
///
/// # Errors
/// [`NoDesign`] names the region, and the rule, distance or room that prevents it.
pub fn design(case: &RegionsCase) -> Result<Design, NoDesign> {
    let regions: Vec<Served> = (0..case.regions.len()).map(|r| case.served(r)).collect();
    for (index, served) in regions.iter().enumerate() {
        case.check(index, served)?;
    }
    let sites = case.sites(&regions)?;
    let crossing = case.crossing(&regions, &sites)?;
    Ok(Design {
        partitions: case.partitions(),
        links: case.crossings(),
        bill: case.bill(&sites, &crossing),
        regions,
        sites,
    })
}

impl RegionsCase {
    /// Sites, with what they can be.
    fn offers(&self) -> impl Iterator<Item = (RegionIndex, SiteOffer)> {
        let regions = self.regions.iter().enumerate();
        regions.filter_map(|(index, region)| Some((index, region.site?)))
    }

    fn link(&self, a: RegionIndex, b: RegionIndex) -> Option<&RegionLink> {
        self.links.get(&ends(a, b))
    }

    /// Whether residency lets a site have the region's data.
    fn allowed(&self, region: RegionIndex, site: RegionIndex) -> bool {
        let jurisdiction = &self.regions[site].jurisdiction;
        let may_go = &self.regions[region].data_may_go;
        may_go.as_ref().is_none_or(|may_go| may_go.contains(jurisdiction))
    }

    /// Prefill of a prompt that the objective is kept for.
    fn slow_prefill(&self) -> Duration {
        self.prefill.time(self.work.objective_tokens)
    }

    fn way(&self, region: RegionIndex, site: RegionIndex) -> Result<Way, Obstacle> {
        if !self.allowed(region, site) {
            return Err(Obstacle::Residency);
        }
        let rtt = match self.link(region, site) {
            _ if region == site => Duration::ZERO,
            Some(link) => link.rtt,
            None => return Err(Obstacle::NoLink),
        };
        let ttft = rtt * self.objective.round_trips + self.slow_prefill();
        if ttft > self.objective.ttft {
            return Err(Obstacle::TooFar { ttft });
        }
        Ok(Way { site, rtt, ttft })
    }

    fn served(&self, region: RegionIndex) -> Served {
        let (mut by, mut not_by) = (Vec::new(), Vec::new());
        for (site, _) in self.offers() {
            match self.way(region, site) {
                Ok(way) => by.push(way),
                Err(obstacle) => not_by.push((site, obstacle)),
            }
        }
        // At the same distance a region's own site comes first: nothing has to cross.
        by.sort_by_key(|way| (way.ttft, way.site != region, way.site));
        Served { by, not_by }
    }

    fn check(&self, index: RegionIndex, served: &Served) -> Result<(), NoDesign> {
        let region = self.regions[index].name.clone();
        let Some(first) = served.by.first() else {
            return Err(self.unserved(index, served));
        };
        if self.failover == Failover::Required && served.by.len() < 2 {
            return Err(NoDesign::NoFailover {
                region,
                site: self.regions[first.site].name.clone(),
                why: self.obstacles(served),
            });
        }
        Ok(())
    }

    /// Why no site serves a region: residency when it leaves none, else distance.
    fn unserved(&self, index: RegionIndex, served: &Served) -> NoDesign {
        let region = self.regions[index].name.clone();
        let too_far = served
            .not_by
            .iter()
            .filter_map(|(site, obstacle)| match obstacle {
                Obstacle::TooFar { ttft } => Some((*ttft, *site)),
                Obstacle::Residency | Obstacle::NoLink => None,
            });
        if let Some((ttft, site)) = too_far.min() {
            let prefill = self.slow_prefill();
            return NoDesign::TooFar {
                region,
                site: self.regions[site].name.clone(),
                trips: ttft.saturating_sub(prefill),
                prefill,
                objective: self.objective.ttft,
            };
        }
        if served
            .not_by
            .iter()
            .any(|(_, obstacle)| *obstacle == Obstacle::NoLink)
        {
            return NoDesign::NoLink { region };
        }
        NoDesign::Residency {
            region,
            may_go: self.regions[index].data_may_go.clone().unwrap_or_default(),
        }
    }

    fn obstacles(&self, served: &Served) -> String {
        if served.not_by.is_empty() {
            return "there is no other site".to_owned();
        }
        let said = served.not_by.iter().map(|(site, obstacle)| {
            let name = &self.regions[*site].name;
            match obstacle {
                Obstacle::Residency => format!("residency forbids {name}"),
                Obstacle::NoLink => format!("{name} is not linked"),
                Obstacle::TooFar { ttft } => format!("{name} answers after {} ms", ttft.as_millis()),
            }
        });
        said.collect::<Vec<_>>().join(", ")
    }

    /// Regions by the set of sites that residency allows them.
    fn partitions(&self) -> Vec<Partition> {
        let mut by_sites: BTreeMap<Vec<RegionIndex>, Vec<RegionIndex>> = BTreeMap::new();
        for region in 0..self.regions.len() {
            let sites = self.offers().map(|(site, _)| site);
            let at = sites.filter(|site| self.allowed(region, *site)).collect();
            by_sites.entry(at).or_default().push(region);
        }
        let partitions = by_sites.into_iter();
        partitions
            .map(|(at, data_of)| Partition { data_of, at })
            .collect()
    }

    /// The site that serves a region while `lost` is gone; none when nobody does.
    fn server<'a>(&self, served: &'a Served, lost: Option<RegionIndex>) -> Option<&'a Way> {
        served.by.iter().find(|way| Some(way.site) != lost)
    }

    /// Load and the farthest region of each site while `lost` is gone.
    fn loads(&self, regions: &[Served], lost: Option<RegionIndex>) -> BTreeMap<RegionIndex, (f64, Duration)> {
        let mut loads: BTreeMap<RegionIndex, (f64, Duration)> = BTreeMap::new();
        for (region, served) in self.regions.iter().zip(regions) {
            if let Some(way) = self.server(served, lost) {
                let (load, farthest) = loads.entry(way.site).or_default();
                *load += region.load_rps;
                *farthest = way.ttft.max(*farthest);
            }
        }
        loads
    }

    fn sites(&self, regions: &[Served]) -> Result<Vec<Site>, NoDesign> {
        let usual = self.loads(regions, None);
        let mut worst = usual.clone();
        if self.failover != Failover::None {
            for (lost, _) in self.offers() {
                for (site, (load, farthest)) in self.loads(regions, Some(lost)) {
                    let known = worst.entry(site).or_default();
                    *known = (load.max(known.0), farthest.max(known.1));
                }
            }
        }
        let offers: BTreeMap<_, _> = self.offers().collect();
        let site = |(region, (worst_rps, farthest)): (RegionIndex, (f64, Duration))| {
            let room = offers.get(&region).map_or(0, |offer| offer.room);
            let load_rps = usual.get(&region).map_or(0.0, |(load, _)| *load);
            self.site(region, [load_rps, worst_rps], farthest, room)
        };
        let loaded = worst.into_iter().filter(|(_, (load, _))| *load > 0.0);
        loaded.map(site).collect()
    }

    /// The fewest instances that hold the worst load and the objective.
    fn site(
        &self,
        region: RegionIndex,
        [load_rps, worst_rps]: [f64; 2],
        farthest: Duration,
        room: u32,
    ) -> Result<Site, NoDesign> {
        let prefill = self
            .prefill
            .mean_seconds(self.work.mean_tokens, self.work.mean_square_tokens);
        let service = prefill + 1.0 / self.decode.rate();
        let busy = worst_rps * service;
        let patience = self.objective.ttft.saturating_sub(farthest);
        let first = (busy / self.objective.utilisation).ceil().max(1.0) as u32;
        let service = Duration::try_from_secs_f64(service).unwrap_or(Duration::MAX);
        let fits = |instances: u32| {
            let wait = wait_at(instances, busy, service, self.objective.quantile)?;
            (wait <= patience).then_some(Site {
                region,
                instances,
                load_rps,
                worst_rps,
                utilisation: busy / f64::from(instances),
                wait,
            })
        };
        (first..=room).find_map(fits).ok_or_else(|| NoDesign::NoRoom {
            site: self.regions[region].name.clone(),
            needed: first.max(room.saturating_add(1)),
            room,
            load_rps: worst_rps,
        })
    }

    fn crossings(&self) -> Vec<Crossing> {
        let far = Tokens(u32::MAX);
        let crossing = |(between, link): (&(RegionIndex, RegionIndex), &RegionLink)| Crossing {
            between: *between,
            rtt: link.rtt,
            request: [1, 2].map(|trips| break_even(&self.prefill, link.rtt, trips).unwrap_or(far)),
            fetch: fetch_break_even(&self.prefill, link.rtt, self.kv, link.capacity),
        };
        self.links.iter().map(crossing).collect()
    }

    /// What crosses each link on an undisturbed day.
    fn crossing(&self, regions: &[Served], sites: &[Site]) -> Result<BTreeMap<Ends, Traffic>, NoDesign> {
        let mut crossing: BTreeMap<Ends, Traffic> = BTreeMap::new();
        let text = (self.work.prompt_tokens + self.decode.output_tokens) * TEXT_BYTES;
        let kv = self.kv.fixed.0 as f64 + self.kv.per_token.0 as f64 * self.work.fetched_tokens;
        for (index, (region, served)) in self.regions.iter().zip(regions).enumerate() {
            let Some(server) = served.by.first().map(|way| way.site) else {
                continue;
            };
            if server != index {
                crossing.entry(ends(index, server)).or_default().requests += region.load_rps * text;
            }
            let fetches = region.load_rps * self.work.fetched_share;
            if let Some(holder) = self.holder(index, server, sites)
                && fetches > 0.0
            {
                crossing.entry(ends(server, holder)).or_default().fetches += fetches * kv;
            }
        }
        for (between, traffic) in &crossing {
            self.carries(*between, *traffic)?;
        }
        Ok(crossing)
    }

    /// The nearest other site that may hold a region's data, linked to the one that serves it.
    fn holder(&self, region: RegionIndex, server: RegionIndex, sites: &[Site]) -> Option<RegionIndex> {
        let holders = sites.iter().map(|site| site.region);
        let holders = holders.filter(|site| *site != server && self.allowed(region, *site));
        let linked = holders.filter_map(|site| Some((self.link(server, site)?.rtt, site)));
        linked.min().map(|(_, site)| site)
    }

    /// Whether a link carries what is to cross it, and KV sooner than it is computed.
    fn carries(&self, between: Ends, traffic: Traffic) -> Result<(), NoDesign> {
        let Some(link) = self.links.get(&between) else {
            return Ok(());
        };
        let names = [between.0, between.1].map(|index| self.regions[index].name.clone());
        let needed = (traffic.requests + traffic.fetches) * 8.0;
        if needed > link.capacity.0 as f64 {
            return Err(NoDesign::NarrowLink {
                between: names,
                needed_gbps: needed / 1e9,
                gbps: link.capacity.0 as f64 / 1e9,
            });
        }
        let from = fetch_break_even(&self.prefill, link.rtt, self.kv, link.capacity);
        if traffic.fetches > 0.0 && from.is_none_or(|from| f64::from(from.0) > self.work.fetched_tokens) {
            return Err(NoDesign::IdleFetch {
                between: names,
                tokens: self.work.fetched_tokens,
                from,
            });
        }
        Ok(())
    }

    fn bill(&self, sites: &[Site], crossing: &BTreeMap<Ends, Traffic>) -> Bill {
        let seconds = MONTH_HOURS * 3600.0;
        let price = |site: &Site| {
            self.regions[site.region]
                .site
                .map_or(0.0, |offer| offer.price_per_hour)
        };
        let mut bill = Bill {
            instances: sites
                .iter()
                .map(|site| f64::from(site.instances) * price(site) * MONTH_HOURS)
                .sum(),
            ..Bill::default()
        };
        let mut bytes = 0.0;
        for (between, traffic) in crossing {
            let price = self.links.get(between).map_or(0.0, |link| link.price_per_gib);
            let cost = |rate: f64| rate * seconds / f64::from(1 << 30) * price;
            bill.requests += cost(traffic.requests);
            bill.fetches += cost(traffic.fetches);
            bytes += (traffic.requests + traffic.fetches) * seconds;
        }
        bill.crossing = Bytes(bytes as u64);
        bill
    }
}

/// The ends of a link, the lower index first.
type Ends = (RegionIndex, RegionIndex);

fn ends(a: RegionIndex, b: RegionIndex) -> Ends {
    (a.min(b), a.max(b))
}

/// What crosses a link, in bytes a second.
#[derive(Clone, Copy, Debug, Default)]
struct Traffic {
    /// Requests and answers, as text.
    requests: f64,
    /// KV that is fetched.
    fetches: f64,
}
