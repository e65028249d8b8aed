//! Requests that are made up: Poisson arrivals, log-normal lengths, and what else a scenario asks for.

use super::{Draws, SimRequest};
use portolan_base::Moment;
use std::time::Duration;

/// Poisson arrivals of prompts with log-normal lengths.
#[derive(Clone, Debug, PartialEq)]
pub struct Synthetic {
    /// How many requests.
    pub requests: usize,
    /// Mean arrivals a second outside bursts and surges.
    pub rate: f64,
    /// Mean of the logarithm of the length.
    pub mu: f64,
    /// Standard deviation of the logarithm of the length.
    pub sigma: f64,
    /// Shortest and longest prompt; lengths outside are drawn again.
    pub lengths: (u32, u32),
    /// Length of every answer.
    pub output_tokens: u32,
    /// Arrivals that come in bursts.
    pub burst: Option<Burst>,
    /// Who sends them; one tenant sends everything when there is none.
    pub tenants: Vec<Tenant>,
    /// What prompts have in common; nothing when there is none.
    pub prefixes: Option<Prefixes>,
}

/// Arrivals that come `factor` times as fast for `lasting` out of each `every`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burst {
    /// From the beginning of one to that of the next.
    pub every: Duration,
    /// How long each lasts.
    pub lasting: Duration,
    /// How many times as fast.
    pub factor: f64,
}

/// One who sends requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tenant {
    /// Its part of the requests, in any unit.
    pub weight: f64,
    /// A time in which it sends more.
    pub surge: Option<Surge>,
}

/// A time in which more is sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Surge {
    /// When it begins.
    pub from: Moment,
    /// When it ends.
    pub to: Moment,
    /// How many times as much.
    pub factor: f64,
}

/// Beginnings that prompts share, such as system prompts and documents: the k-th most popular begins a prompt in
/// proportion to k⁻ˢ (Zipf's law).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prefixes {
    /// How many there are.
    pub count: u32,
    /// The exponent s; 0: all alike.
    pub skew: f64,
    /// Length of each, at most that of the prompt.
    pub tokens: u32,
    /// Tokens in a block.
    pub block_tokens: u32,
}

impl Synthetic {
    /// `requests` at `rate` a second with log-normal lengths, and nothing else.
    pub fn plain(requests: usize, rate: f64, (mu, sigma): (f64, f64), lengths: (u32, u32)) -> Self {
        Self {
            requests,
            rate,
            mu,
            sigma,
            lengths,
            output_tokens: 1,
            burst: None,
            tenants: Vec::new(),
            prefixes: None,
        }
    }

    /// Draws the requests. Same seed, same requests.
    pub fn draw(&self, seed: u64) -> Vec<SimRequest> {
        let mut random = Draws(seed);
        let popularity = self.prefixes.map(Popularity::of);
        let fastest = self.fastest();
        let mut now = 0.0;
        let mut requests = Vec::with_capacity(self.requests);
        while requests.len() < self.requests {
            now -= random.unit().ln() / (self.rate * fastest);
            let arrival = Moment(0) + Duration::try_from_secs_f64(now).unwrap_or(Duration::MAX);
            // Arrivals at the fastest rate, of which the part stays that the moment's rate is of it.
            let factor = self.factor(arrival);
            if factor < fastest && random.unit() * fastest > factor {
                continue;
            }
            let prompt_tokens = self.length(&mut random);
            let tenant = self.tenant(arrival, &mut random);
            let number = requests.len() as u64;
            let blocks = popularity.as_ref().map_or_else(Vec::new, |popularity| {
                popularity.blocks(prompt_tokens, number, &mut random)
            });
            requests.push(SimRequest {
                arrival,
                prompt_tokens,
                output_tokens: self.output_tokens,
                tenant,
                blocks,
            });
        }
        requests
    }

    fn bursting(&self, at: Moment) -> f64 {
        self.burst.map_or(1.0, |burst| {
            let into = at.0 % (burst.every.as_micros() as u64).max(1);
            if into < burst.lasting.as_micros() as u64 {
                burst.factor
            } else {
                1.0
            }
        })
    }

    /// How many times the mean rate comes in at a moment.
    fn factor(&self, at: Moment) -> f64 {
        let all: f64 = self.tenants.iter().map(|tenant| tenant.weight).sum();
        let now: f64 = self.tenants.iter().map(|tenant| tenant.weight_at(at)).sum();
        let surging = if all > 0.0 { now / all } else { 1.0 };
        self.bursting(at) * surging
    }

    /// No moment has a larger factor.
    fn fastest(&self) -> f64 {
        let all: f64 = self.tenants.iter().map(|tenant| tenant.weight).sum();
        let most: f64 = self.tenants.iter().map(Tenant::most).sum();
        let surging = if all > 0.0 { most / all } else { 1.0 };
        self.burst.map_or(1.0, |burst| burst.factor.max(1.0)) * surging
    }

    fn tenant(&self, at: Moment, random: &mut Draws) -> u32 {
        if self.tenants.len() < 2 {
            return 0;
        }
        let all: f64 = self.tenants.iter().map(|tenant| tenant.weight_at(at)).sum();
        let mut left = random.unit() * all;
        let found = self.tenants.iter().position(|tenant| {
            left -= tenant.weight_at(at);
            left <= 0.0
        });
        found.unwrap_or(self.tenants.len() - 1) as u32
    }

    fn length(&self, random: &mut Draws) -> u32 {
        // An interval that holds a thousandth of the distribution is met within ten thousand draws; one that holds
        // nothing must not hang the simulation.
        for _ in 0..10_000 {
            let normal = (-2.0 * random.unit().ln()).sqrt() * (std::f64::consts::TAU * random.unit()).cos();
            let length = (self.mu + self.sigma * normal).exp();
            if (f64::from(self.lengths.0)..=f64::from(self.lengths.1)).contains(&length) {
                return (length as u32).max(1);
            }
        }
        self.lengths.0.max(1)
    }
}

impl Tenant {
    fn weight_at(&self, at: Moment) -> f64 {
        let surging = self.surge.filter(|surge| (surge.from..surge.to).contains(&at));
        self.weight * surging.map_or(1.0, |surge| surge.factor)
    }

    fn most(&self) -> f64 {
        self.weight * self.surge.map_or(1.0, |surge| surge.factor.max(1.0))
    }
}

/// Which prefix begins a prompt.
struct Popularity {
    prefixes: Prefixes,
    /// Sums of the popularities.
    sums: Vec<f64>,
}

impl Popularity {
    fn of(prefixes: Prefixes) -> Self {
        let mut sum = 0.0;
        let sums = (1..=prefixes.count.max(1)).map(|rank| {
            sum += f64::from(rank).powf(-prefixes.skew);
            sum
        });
        Self {
            sums: sums.collect(),
            prefixes,
        }
    }

    /// Names of a prompt's blocks: those of its prefix, then its own.
    fn blocks(&self, prompt_tokens: u32, number: u64, random: &mut Draws) -> Vec<u64> {
        let Prefixes {
            tokens, block_tokens, ..
        } = self.prefixes;
        let all = self.sums.last().copied().unwrap_or(1.0);
        let drawn = random.unit() * all;
        let prefix = self.sums.partition_point(|sum| *sum < drawn) as u64;
        let count = u64::from(prompt_tokens.div_ceil(block_tokens.max(1)));
        let shared = u64::from(tokens / block_tokens.max(1)).min(count);
        let named = |whose: u64, block: u64| Draws((whose << 24) ^ block).next();
        let own = (1 << 36) + number;
        (0..count)
            .map(|block| named(if block < shared { prefix } else { own }, block))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Synthetic {
        Synthetic::plain(20_000, 10.0, (7.0, 0.5), (100, 10_000))
    }

    #[test]
    fn bursts_come_when_they_are_said_to_and_the_rest_goes_on() {
        let burst = Burst {
            every: Duration::from_secs(60),
            lasting: Duration::from_secs(15),
            factor: 5.0,
        };
        let drawn = Synthetic {
            burst: Some(burst),
            ..plain()
        }
        .draw(3);
        let inside = drawn
            .iter()
            .filter(|r| r.arrival.0 % 60_000_000 < 15_000_000)
            .count();
        // A quarter of the time at five times the rate: 5/8 of the requests.
        assert!((inside as f64 / 20_000.0 - 0.625).abs() < 0.02, "{inside}");
        let seconds = drawn[19_999].arrival.0 as f64 / 1e6;
        assert!((20_000.0 / seconds - 20.0).abs() < 0.6, "{seconds}");
    }

    #[test]
    fn a_tenant_that_surges_adds_to_what_the_others_send() {
        let surge = Surge {
            from: Moment(500_000_000),
            to: Moment(600_000_000),
            factor: 10.0,
        };
        let tenant = |weight, surge| Tenant { weight, surge };
        let tenants = vec![tenant(3.0, None), tenant(1.0, Some(surge))];
        let drawn = Synthetic { tenants, ..plain() }.draw(3);
        let rate = |tenant: u32, from: u64, to: u64| {
            let within =
                |r: &&SimRequest| (from..to).contains(&(r.arrival.0 / 1_000_000)) && r.tenant == tenant;
            drawn.iter().filter(within).count() as f64 / (to - from) as f64
        };
        for (got, expected) in [
            (rate(0, 0, 500), 7.5),
            (rate(1, 0, 500), 2.5),
            (rate(0, 500, 600), 7.5),
            (rate(1, 500, 600), 25.0),
        ] {
            assert!((got / expected - 1.0).abs() < 0.12, "{got} for {expected}");
        }
    }

    #[test]
    fn the_popular_prefix_begins_most_prompts() {
        let prefixes = Prefixes {
            count: 100,
            skew: 1.0,
            tokens: 1024,
            block_tokens: 512,
        };
        let drawn = Synthetic {
            prefixes: Some(prefixes),
            ..plain()
        }
        .draw(3);
        assert!(
            drawn
                .iter()
                .all(|r| r.blocks.len() == r.prompt_tokens.div_ceil(512) as usize)
        );
        let mut counts = std::collections::HashMap::<u64, usize>::new();
        drawn
            .iter()
            .for_each(|r| *counts.entry(r.blocks[0]).or_default() += 1);
        let most = counts.values().max().copied().unwrap_or(0) as f64 / 20_000.0;
        // Of a hundred the first has 1/H(100) = 0.193.
        assert!(
            (most - 0.193).abs() < 0.02 && counts.len() == 100,
            "{most} {}",
            counts.len()
        );
        let tails: std::collections::HashSet<u64> =
            drawn.iter().filter_map(|r| r.blocks.get(2)).copied().collect();
        let long = drawn.iter().filter(|r| r.blocks.len() > 2).count();
        assert_eq!(tails.len(), long, "what follows is each prompt's own");
    }
}
