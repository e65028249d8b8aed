//! Whom a configuration lets in: all of it is written, or nothing.

use super::{SledStore, empty_key};
use crate::ledger::{ChangingDeed, Deed, Table, Write};
use crate::opening::read_keys;
use crate::slot::tenant_key;
use portolan_base::Moment;
use portolan_ports::{Admission, KeyRecord, Operation, StoreError};
use std::collections::HashMap;

/// Lines of the audit log, with the records that are written beside them.
struct Change<'a> {
    actor: &'a str,
    at: Moment,
    deeds: Vec<ChangingDeed>,
    writes: Vec<Write>,
}

impl Change<'_> {
    fn add(&mut self, action: &'static str, subject: String, write: Write) {
        let deed = Deed {
            at: self.at,
            actor: self.actor.to_owned(),
            action,
            subject,
            reason: String::new(),
        };
        self.deeds.push(deed.into());
        self.writes.push(write);
    }
}

impl SledStore {
    /// Does what [`portolan_ports::PolicyStore::admit`] says.
    pub(super) fn admit_all(
        &self,
        admission: &Admission<'_>,
        note: Option<Operation>,
        (actor, at): (&str, Moment),
    ) -> Result<usize, StoreError> {
        if admission.keys.iter().any(|(key, ..)| key.is_empty()) {
            return Err(empty_key());
        }
        let mut turn = self.turn()?;
        let mut change = Change {
            actor,
            at,
            deeds: note.map(|note| Deed::of(note).into()).into_iter().collect(),
            writes: Vec::new(),
        };
        let mut tenants = self.tenants.read().clone();
        for tenant in &admission.tenants {
            if tenants.get(&tenant.name) != Some(tenant) {
                let write = Write::new(Table::Tenants, tenant_key(&tenant.name), tenant)?;
                change.add("tenant.put", tenant.name.to_string(), write);
                tenants.insert(tenant.name.clone(), tenant.clone());
            }
        }
        let mut keys: HashMap<_, _> = read_keys(&self.ledger)?.into_iter().collect();
        let mut revoked: HashMap<_, KeyRecord> = keys.clone();
        revoked.retain(|_, record| record.label == admission.label);
        for (key, principal, holder) in &admission.keys {
            let digest = self.keys.digest(key);
            revoked.remove(&digest);
            let known = keys.get(&digest);
            if known.is_none_or(|known| known.principal != *principal || known.holder != *holder) {
                let record = admission.record(principal, holder.as_ref());
                let write = Write::new(Table::Keys, hex::encode(digest), &record)?;
                change.add("key.put", record.subject(), write);
                keys.insert(digest, record);
            }
        }
        let count = revoked.len();
        let mut revoked: Vec<(String, _)> = revoked
            .into_iter()
            .map(|(digest, record)| (record.subject(), digest))
            .collect();
        revoked.sort();
        for (subject, digest) in revoked {
            let removal = Write::removal(Table::Keys, hex::encode(digest));
            change.add("key.revoke", subject, removal);
            keys.remove(&digest);
        }
        if change.deeds.is_empty() {
            return Ok(0);
        }
        self.ledger.commit_all(&mut turn, change.deeds, change.writes)?;
        self.keys.replace(keys);
        *self.tenants.write() = tenants;
        Ok(count)
    }
}
