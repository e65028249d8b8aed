//! Quadratics in the prompt's length: what prefill and transfer take, and where two of them take the same.

use crate::profile::PrefillProfile;
use portolan_base::Tokens;

/// c₀ + c₁x + c₂x².
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Quadratic(pub(crate) [f64; 3]);

impl From<PrefillProfile> for Quadratic {
    fn from(profile: PrefillProfile) -> Self {
        Self([profile.fixed_s, profile.per_token_s, profile.per_token_squared_s])
    }
}

impl Quadratic {
    pub(crate) fn at(self, x: f64) -> f64 {
        self.mean(x, x * x)
    }

    /// Its mean over values of x with this mean and mean square.
    pub(crate) fn mean(self, mean: f64, mean_square: f64) -> f64 {
        let [c0, c1, c2] = self.0;
        c0 + c1 * mean + c2 * mean_square
    }

    pub(crate) fn times(self, factor: f64) -> Self {
        Self(self.0.map(|c| c * factor))
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        let ([a0, a1, a2], [b0, b1, b2]) = (self.0, other.0);
        Self([a0 + b0, a1 + b1, a2 + b2])
    }

    /// The real roots, computed without cancellation.
    pub(crate) fn roots(self) -> [Option<f64>; 2] {
        let [c0, c1, c2] = self.0;
        if c2 == 0.0 {
            return [(c1 != 0.0).then(|| -c0 / c1), None];
        }
        let discriminant = c1 * c1 - 4.0 * c2 * c0;
        if discriminant < 0.0 {
            return [None, None];
        }
        let q = -(c1 + discriminant.sqrt().copysign(c1)) / 2.0;
        [Some(q / c2), (q != 0.0).then(|| c0 / q)]
    }
}

/// The lengths cut at the roots of a quadratic: in each section its sign is one.
pub(crate) struct Sections {
    /// Ends of the sections still to come, the nearest last.
    ends: Vec<u32>,
    over: u32,
}

impl Sections {
    /// Sections (over, up to] that hold every length.
    pub(crate) fn between_roots(quadratic: Quadratic) -> Self {
        let within = |root: &f64| *root > 0.0 && *root < f64::from(u32::MAX);
        let roots = quadratic.roots().into_iter().flatten().filter(within);
        // The length just below the root: at the root itself both signs are right.
        let mut ends: Vec<u32> = roots.map(|root| root as u32).chain([u32::MAX]).collect();
        ends.sort_unstable_by(|a, b| b.cmp(a));
        Self { ends, over: 0 }
    }
}

impl Iterator for Sections {
    type Item = (Tokens, Tokens);

    fn next(&mut self) -> Option<Self::Item> {
        let up_to = self.ends.pop()?;
        let over = std::mem::replace(&mut self.over, up_to);
        Some((Tokens(over), Tokens(up_to)))
    }
}
