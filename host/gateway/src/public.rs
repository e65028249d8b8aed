//! Prefixes that the platform marked as public: tenants share the KV of prompts that begin with them.

use portolan_base::ModelName;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Tokens of public prefixes, by model.
#[derive(Clone, Debug, Default)]
pub struct PublicPrefixes(BTreeMap<ModelName, Vec<Arc<[u32]>>>);

impl PublicPrefixes {
    /// Marks a prefix as public.
    pub fn add(&mut self, model: ModelName, tokens: Arc<[u32]>) {
        self.0.entry(model).or_default().push(tokens);
    }

    /// How many tokens of a prompt are public: as far as it runs along any public prefix.
    pub fn common(&self, model: &ModelName, prompt: &[u32]) -> u32 {
        let along = |prefix: &Arc<[u32]>| prefix.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let longest = self.0.get(model).into_iter().flatten().map(along).max();
        u32::try_from(longest.unwrap_or(0)).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_public_as_far_as_it_runs_along_a_prefix_of_its_model() {
        let (m, n) = (ModelName::new("m").unwrap(), ModelName::new("n").unwrap());
        let mut public = PublicPrefixes::default();
        assert_eq!(public.common(&m, &[1, 2]), 0);
        public.add(m.clone(), [1, 2, 3].into());
        public.add(m.clone(), [1, 2, 4, 5].into());
        for (prompt, common) in [
            (&[1, 2, 4, 9][..], 3),
            (&[1, 2, 3, 4], 3),
            (&[9], 0),
            (&[1], 1),
            (&[], 0),
        ] {
            assert_eq!(public.common(&m, prompt), common, "{prompt:?}");
        }
        assert_eq!(public.common(&n, &[1, 2, 3]), 0);
    }
}
