//! Whose request it is, and how far it narrows what its tenant may do. A key may narrow, never widen.

use super::hints::Hints;
use crate::error::{ErrorKind, RequestError};
use crate::site::Site;
use portolan_base::TenantName;
use portolan_policy::NameTables;
use portolan_ports::{Principal, TenantRecord};

/// "No restriction stated", the first entry of the jurisdictions.
const ANY: &str = "any";

/// The tenant the request is served for.
pub(super) fn tenant(
    site: &Site,
    principal: &Principal,
    hints: &Hints,
) -> Result<TenantRecord, RequestError> {
    let name = match (principal, hints.tenant.as_deref()) {
        (Principal::Tenant(own), None) => own.clone(),
        (Principal::Tenant(own), Some(asked)) if own.as_str() == asked => own.clone(),
        (Principal::Tenant(_), Some(_)) => {
            let message =
                "tenant_id is not the tenant of this key; leave it out or send the key's own tenant";
            return Err(field(ErrorKind::Forbidden, "tenant_id", message));
        }
        (Principal::Operator, None) => {
            let message = "the operator's key serves no tenant of its own; name one in tenant_id";
            return Err(field(ErrorKind::Forbidden, "tenant_id", message));
        }
        (Principal::Operator, Some(asked)) => TenantName::new(asked).map_err(|_| unknown_tenant())?,
    };
    match site.parts.store.tenant(&name) {
        Ok(Some(record)) => Ok(record),
        Ok(None) if *principal == Principal::Operator => Err(unknown_tenant()),
        Ok(None) => Err(RequestError::new(
            ErrorKind::Forbidden,
            "the tenant of this key does not exist any more",
        )),
        Err(error) => {
            let message = "the tenant could not be looked up";
            Err(RequestError::new(ErrorKind::Internal, message).with_detail(error))
        }
    }
}

fn unknown_tenant() -> RequestError {
    field(
        ErrorKind::NotFound,
        "tenant_id",
        "tenant_id names no tenant of this platform",
    )
}

/// The tenant's record with the jurisdiction and class of this one request.
pub(super) fn narrow(
    mut tenant: TenantRecord,
    names: &NameTables,
    hints: &Hints,
) -> Result<TenantRecord, RequestError> {
    tenant.jurisdiction = jurisdiction(&tenant.jurisdiction, names, hints.jurisdiction.as_deref())?;
    tenant.user_class = user_class(&tenant.user_class, names, hints.user_class.as_deref())?;
    Ok(tenant)
}

/// Whether a jurisdiction, as a tenant or a request states it, binds data to anything.
pub(super) fn restricts(jurisdiction: &str) -> bool {
    !(jurisdiction.is_empty() || jurisdiction == ANY)
}

/// Of two classes the one that is listed later. One that is not listed is left to be refused.
pub(super) fn more_restricted<'c>(names: &NameTables, one: &'c str, other: &'c str) -> &'c str {
    let position = |class: &str| match class {
        "" => 0,
        class => names
            .user_classes
            .iter()
            .position(|known| known == class)
            .unwrap_or(usize::MAX),
    };
    if position(one) >= position(other) && !one.is_empty() {
        one
    } else {
        other
    }
}

/// A tenant bound to a jurisdiction stays in it; one that is not bound may choose any.
fn jurisdiction(own: &str, names: &NameTables, asked: Option<&str>) -> Result<String, RequestError> {
    const PATH: &str = "portolan.jurisdiction";
    let unbound = !restricts(own);
    if !unbound && names.jurisdiction(own).is_none() {
        // Serving it as if it were unrestricted would send data where it must not go.
        return Err(misconfigured(&format!("jurisdiction {own:?}")));
    }
    match asked {
        None => Ok(own.to_owned()),
        Some(asked) if names.jurisdiction(asked).is_none() => {
            let known = names.jurisdictions.join(", ");
            Err(RequestError::bad_field(
                PATH,
                format!("{PATH} is not known here; use one of {known}"),
            ))
        }
        Some(asked) if unbound || asked == own => Ok(asked.to_owned()),
        Some(_) => {
            let message = format!("{PATH} may not leave {own}, to which this tenant is bound");
            Err(field(ErrorKind::Forbidden, PATH, message))
        }
    }
}

/// Classes are listed from the least to the most restricted, `standard` first: a request may claim its tenant's class
/// or a later one.
fn user_class(own: &str, names: &NameTables, asked: Option<&str>) -> Result<String, RequestError> {
    const PATH: &str = "portolan.user_class";
    let position = |class: &str| names.user_classes.iter().position(|known| known == class);
    let own_at = match own {
        "" => Some(0),
        own => position(own),
    };
    let own_at = own_at.ok_or_else(|| misconfigured(&format!("class {own:?}")))?;
    let Some(asked) = asked else {
        return Ok(own.to_owned());
    };
    match position(asked) {
        None => {
            let known = names.user_classes.join(", ");
            Err(RequestError::bad_field(
                PATH,
                format!("{PATH} is not known here; use one of {known}"),
            ))
        }
        Some(at) if at < own_at => {
            let allowed = names.user_classes[own_at..].join(", ");
            let message =
                format!("{PATH} may not be less restricted than the tenant's own; use one of {allowed}");
            Err(field(ErrorKind::Forbidden, PATH, message))
        }
        Some(_) => Ok(asked.to_owned()),
    }
}

fn misconfigured(what: &str) -> RequestError {
    let message = "this tenant's configuration does not fit this site; tell the platform's operator";
    RequestError::new(ErrorKind::Internal, message)
        .with_detail(format!("the tenant's {what} is in no name table"))
}

fn field(kind: ErrorKind, path: &str, message: impl Into<String>) -> RequestError {
    RequestError {
        param: Some(path.to_owned()),
        ..RequestError::new(kind, message)
    }
}
