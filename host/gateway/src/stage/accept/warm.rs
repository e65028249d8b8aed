//! Prompts that were computed ahead: what a request that begins with one by its id has in common with the one that sent it.

use super::hints::Hints;
use super::narrow;
use super::prompt::Prompts;
use crate::accepted::Accepted;
use crate::error::{ErrorKind, RequestError};
use portolan_base::Dependency;
use portolan_policy::NameTables;
use std::sync::Arc;

/// A prompt, and what it was sent under. The id stands for all of it: whoever names the id sends the text without seeing
/// it, so nothing that was said about the text is lost.
#[derive(Clone, Debug)]
pub struct Warm {
    /// As it was sent.
    pub(super) prompts: Prompts,
    jurisdiction: String,
    user_class: String,
    dependencies: Arc<[Dependency]>,
    cache_salt: Option<String>,
}

impl Warm {
    /// What `request` was computed from.
    pub(super) fn of(prompts: Prompts, request: &Accepted) -> Self {
        Self {
            prompts,
            jurisdiction: request.tenant.jurisdiction.clone(),
            user_class: request.tenant.user_class.clone(),
            dependencies: request.dependencies.clone().into(),
            cache_salt: request.cache_salt.clone(),
        }
    }

    /// Its size, as far as it takes memory.
    pub(crate) fn bytes(&self) -> usize {
        let named = self.dependencies.iter();
        let named: usize = named.map(|d| d.kind.len() + d.name.len() + d.version.len()).sum();
        self.prompts.bytes() + named
    }

    /// Its salt, for a request that brings none.
    pub(super) fn salt(&self) -> Option<String> {
        self.cache_salt.clone()
    }

    /// Binds a request that begins with it to where its data may be, to its class, and to what it depends on.
    ///
    /// # Errors
    /// When the request says otherwise.
    pub(super) fn bind(&self, hints: &mut Hints, names: &NameTables) -> Result<(), RequestError> {
        if narrow::restricts(&self.jurisdiction) {
            match &hints.jurisdiction {
                Some(asked) if *asked != self.jurisdiction => {
                    return Err(self.stays("portolan.jurisdiction", &self.jurisdiction));
                }
                _ => hints.jurisdiction = Some(self.jurisdiction.clone()),
            }
        }
        let asked = hints.user_class.take().unwrap_or_default();
        let class = narrow::more_restricted(names, &asked, &self.user_class);
        hints.user_class = Some(class.to_owned()).filter(|class| !class.is_empty());
        for known in self.dependencies.iter() {
            let same = |d: &&Dependency| d.kind == known.kind && d.name == known.name;
            match hints.dependencies.iter().find(same) {
                Some(named) if named.version != known.version => return Err(other_version(known, named)),
                Some(_) => {}
                None => hints.dependencies.push(known.clone()),
            }
        }
        Ok(())
    }

    fn stays(&self, path: &str, at: &str) -> RequestError {
        let text = format!(
            "{path} may not differ from that of the prompt that portolan.cache_id names, which stays in {at}: leave it out, \
             or send the whole prompt"
        );
        RequestError {
            param: Some(path.to_owned()),
            ..RequestError::new(ErrorKind::Forbidden, text)
        }
    }
}

fn other_version(known: &Dependency, named: &Dependency) -> RequestError {
    let Dependency { kind, name, version } = known;
    let text = format!(
        "portolan.cache_id names a prompt that was sent as made of {kind} {name} at version {version}, and \
         portolan.dependencies names version {}: compute the new text ahead, or send the whole prompt",
        named.version
    );
    RequestError::bad_field("portolan.dependencies", text)
}
