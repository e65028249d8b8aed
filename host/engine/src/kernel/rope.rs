//! Rotary position embedding.

/// Which two values of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RopePairs {
    /// Value `i` with value `i + half`: Hugging Face checkpoints.
    Halves,
    /// Value `2i` with value `2i + 1`: GGUF files of the Llama architecture, whose rows were permuted for it.
    Adjacent,
}

/// How the angles of a model are stretched that was trained on shorter prompts first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RopeScaling {
    /// They are not.
    None,
    /// All alike.
    Linear {
        /// By so much.
        factor: f32,
    },
    /// Those of long waves, as Llama 3.1 does: waves longer than `original / low` by the factor, those shorter than
    /// `original / high` not at all, and those between in part.
    Llama3 {
        /// By so much at most.
        factor: f32,
        /// Waves in the original context from which on some of the angle is kept.
        low: f32,
        /// Waves in it from which on all of it is.
        high: f32,
        /// Tokens of the context that the model was trained on first.
        original: f32,
    },
}

impl RopeScaling {
    fn of(self, frequency: f32) -> f32 {
        match self {
            Self::None => frequency,
            Self::Linear { factor } => frequency / factor,
            Self::Llama3 {
                factor,
                low,
                high,
                original,
            } => {
                let waves = original * frequency / std::f32::consts::TAU;
                let kept = ((waves - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 - kept) * frequency / factor + kept * frequency
            }
        }
    }
}

/// Rotation of the first values of each head by an angle that grows with the position.
#[derive(Clone, Debug)]
pub(crate) struct Rope {
    frequencies: Vec<f32>,
    pairs: RopePairs,
}

/// Sines and cosines of some positions, shared by all layers of a forward pass.
#[derive(Debug)]
pub(crate) struct Rotation {
    angles: Vec<(f32, f32)>,
    half: usize,
    pairs: RopePairs,
}

impl Rope {
    /// Rotates the first `width` values of a head, with base frequency `theta`.
    pub(crate) fn new(theta: f32, width: usize, pairs: RopePairs, scaling: RopeScaling) -> Self {
        let frequency = |i: usize| scaling.of(1.0 / theta.powf((2 * i) as f32 / width as f32));
        Self {
            frequencies: (0..width / 2).map(frequency).collect(),
            pairs,
        }
    }

    /// How many values of a head are rotated, and in which pairs.
    pub(crate) fn shape(&self) -> (usize, RopePairs) {
        (2 * self.frequencies.len(), self.pairs)
    }

    /// The rotation of these positions, one a row.
    pub(crate) fn at(&self, positions: impl IntoIterator<Item = usize>) -> Rotation {
        let angles = positions
            .into_iter()
            .flat_map(|position| {
                self.frequencies
                    .iter()
                    .map(move |f| (position as f32 * f).sin_cos())
            })
            .collect();
        Rotation {
            angles,
            half: self.frequencies.len(),
            pairs: self.pairs,
        }
    }
}

impl Rotation {
    /// Sine and cosine of each pair of values of each row.
    pub(crate) fn angles(&self) -> &[(f32, f32)] {
        &self.angles
    }

    /// Rotates one head of the row at `index`.
    pub(crate) fn apply(&self, index: usize, head: &mut [f32]) {
        for (i, (sin, cos)) in self.angles[index * self.half..][..self.half].iter().enumerate() {
            let (a, b) = match self.pairs {
                RopePairs::Halves => (i, i + self.half),
                RopePairs::Adjacent => (2 * i, 2 * i + 1),
            };
            let (x, y) = (head[a], head[b]);
            head[a] = x * cos - y * sin;
            head[b] = y * cos + x * sin;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_zero_stands_still_and_values_beyond_the_width_always_do() {
        let rope = Rope::new(10_000.0, 4, RopePairs::Halves, RopeScaling::None);
        let rotation = rope.at([0, 1]);
        let before = [1.0, 2.0, 3.0, 4.0, 5.0];
        let mut head = before;
        rotation.apply(0, &mut head);
        assert_eq!(head, before);
        rotation.apply(1, &mut head);
        assert_ne!(head[..4], before[..4]);
        assert_eq!(head[4], 5.0);
    }

    #[test]
    fn both_pairings_rotate_by_the_same_angles() {
        let (mut halves, mut adjacent) = ([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0]);
        Rope::new(100.0, 4, RopePairs::Halves, RopeScaling::None)
            .at([7])
            .apply(0, &mut halves);
        Rope::new(100.0, 4, RopePairs::Adjacent, RopeScaling::None)
            .at([7])
            .apply(0, &mut adjacent);
        assert_eq!(halves, [adjacent[0], adjacent[2], adjacent[1], adjacent[3]]);
    }

    #[test]
    fn long_waves_are_stretched_and_short_ones_are_not() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low: 1.0,
            high: 4.0,
            original: 8192.0,
        };
        let wave = |tokens: f32| std::f32::consts::TAU / tokens;
        let near = |a: f32, b: f32| (a / b - 1.0).abs() < 1e-5;
        assert!(near(scaling.of(wave(100.0)), wave(100.0)), "82 waves");
        assert!(near(scaling.of(wave(8192.0)), wave(8192.0) / 8.0), "one wave");
        assert!(near(scaling.of(wave(1e6)), wave(1e6) / 8.0));
        // 2.5 waves: half of it is kept.
        assert!(near(
            scaling.of(wave(8192.0 / 2.5)),
            wave(8192.0 / 2.5) * (0.5 + 0.5 / 8.0)
        ));
        assert!(near(RopeScaling::Linear { factor: 4.0 }.of(1.0), 0.25));
    }
}
