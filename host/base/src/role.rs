//! What an engine instance is for.

use serde::{Deserialize, Serialize};

/// What an instance is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Computes KV only.
    Prefill,
    /// Generates tokens from KV only.
    Decode,
    /// Does both.
    Both,
}

impl Role {
    /// Whether prefill may run here.
    pub const fn prefills(self) -> bool {
        matches!(self, Self::Prefill | Self::Both)
    }

    /// Whether decode may run here.
    pub const fn decodes(self) -> bool {
        matches!(self, Self::Decode | Self::Both)
    }
}

/// What an instance does at present of what it can do.
///
/// It turns to another role in two steps: it takes no more work that the new role does not do, and once what it had of
/// that is done it has turned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Duty {
    /// What it does.
    role: Role,
    /// What it will do once its work is done.
    turning_to: Option<Role>,
}

impl Duty {
    /// It does `role`.
    pub const fn of(role: Role) -> Self {
        Self {
            role,
            turning_to: None,
        }
    }

    /// What it does, or did before it began to turn.
    pub const fn role(self) -> Role {
        self.role
    }

    /// Whether work of its old role is still to end.
    pub const fn is_turning(self) -> bool {
        self.turning_to.is_some()
    }

    /// What it may be given: while it turns, what both roles do; none where they have nothing in common.
    pub const fn takes(self) -> Option<Role> {
        match (self.role, self.turning_to) {
            (role, None) | (role, Some(Role::Both)) | (Role::Both, Some(role)) => Some(role),
            (Role::Prefill | Role::Decode, Some(_)) => None,
        }
    }

    /// It is to do `to` from when its present work is done.
    #[must_use]
    pub fn turned(self, to: Role) -> Self {
        Self {
            turning_to: (to != self.role).then_some(to),
            ..self
        }
    }

    /// The duty after a look at what is still running of prefill and of decode.
    #[must_use]
    pub const fn after(self, prefilling: u32, decoding: u32) -> Self {
        let Some(to) = self.turning_to else {
            return self;
        };
        let prefill_to_end = self.role.prefills() && !to.prefills() && prefilling > 0;
        let decode_to_end = self.role.decodes() && !to.decodes() && decoding > 0;
        if prefill_to_end || decode_to_end {
            self
        } else {
            Self::of(to)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_changes_when_the_work_of_the_old_one_is_done() {
        let decoding = Duty::of(Role::Decode);
        assert_eq!(decoding.takes(), Some(Role::Decode));
        let turning = decoding.turned(Role::Prefill);
        assert_eq!((turning.takes(), turning.is_turning()), (None, true));
        assert_eq!(
            turning.after(0, 3),
            turning,
            "three answers are still being generated"
        );
        // Prefill that runs on it was not of the old role.
        assert_eq!(turning.after(5, 0), Duty::of(Role::Prefill));
        assert_eq!(decoding.after(0, 0), decoding);
    }

    #[test]
    fn what_both_roles_do_goes_on() {
        let both = Duty::of(Role::Both);
        let turning = both.turned(Role::Decode);
        assert_eq!(turning.takes(), Some(Role::Decode));
        assert_eq!(turning.after(1, 9), turning);
        assert_eq!(
            turning.after(0, 9),
            Duty::of(Role::Decode),
            "its answers are of the new role too"
        );
        assert_eq!(turning.turned(Role::Both), both, "it may think better of it");
        let back = Duty::of(Role::Prefill).turned(Role::Both);
        assert_eq!((back.takes(), back.after(3, 0)), (Some(Role::Prefill), both));
    }
}
