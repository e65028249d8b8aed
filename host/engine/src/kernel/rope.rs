//! Rotary position embedding.

/// Which two values of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RopePairs {
    /// Value `i` with value `i + half`: Hugging Face checkpoints.
    Halves,
    /// Value `2i` with value `2i + 1`: GGUF files of the Llama architecture, whose rows were permuted for it.
    Adjacent,
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
    pub(crate) fn new(theta: f32, width: usize, pairs: RopePairs) -> Self {
        let frequency = |i: usize| 1.0 / theta.powf((2 * i) as f32 / width as f32);
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
        let rope = Rope::new(10_000.0, 4, RopePairs::Halves);
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
        Rope::new(100.0, 4, RopePairs::Halves)
            .at([7])
            .apply(0, &mut halves);
        Rope::new(100.0, 4, RopePairs::Adjacent)
            .at([7])
            .apply(0, &mut adjacent);
        assert_eq!(halves, [adjacent[0], adjacent[2], adjacent[1], adjacent[3]]);
    }
}
