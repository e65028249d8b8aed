//! The admin doors of a version's life after its upload: one path a change, all of them `POST` with a JSON body.

use super::admin::{self, ACTIVATION_MAX_BYTES, SlotPath};
use super::{body, errors};
use crate::error::{ErrorKind, RequestError};
use crate::policies::{DeskError, Order, PolicyDesk, PolicySlot, RollBack, TrialOrder};
use crate::site::Site;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use portolan_decide::{Budget, Percent, TrialStage};
use portolan_ports::Reuse;
use serde::Deserialize;
use std::str::FromStr;
use std::sync::Arc;

type ChangePath = Result<Path<(String, String, String)>, PathRejection>;

/// What can be done to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Shadow,
    Canary,
    Promote,
    Withdraw,
    Rollback,
    Pin,
    Unpin,
    Disable,
    Enable,
}

impl FromStr for Change {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        Ok(match word {
            "shadow" => Self::Shadow,
            "canary" => Self::Canary,
            "promote" => Self::Promote,
            "withdraw" => Self::Withdraw,
            "rollback" => Self::Rollback,
            "pin" => Self::Pin,
            "unpin" => Self::Unpin,
            "disable" => Self::Disable,
            "enable" => Self::Enable,
            _ => return Err(()),
        })
    }
}

impl Change {
    /// The fields it takes beside `reason`.
    const fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Shadow => &["version", "config", "budget", "reuse"],
            Self::Canary => &["version", "config", "budget", "reuse", "percent"],
            Self::Rollback => &["version"],
            Self::Promote | Self::Withdraw | Self::Pin | Self::Unpin | Self::Disable | Self::Enable => &[],
        }
    }
}

/// The body, the same for every change; which fields a change takes is in [`Change::fields`].
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeBody {
    version: Option<String>,
    percent: Option<u8>,
    config: Option<String>,
    budget: Option<Budget>,
    reuse: Option<Reuse>,
    #[serde(default)]
    reason: String,
}

impl ChangeBody {
    /// A field that the change has no use for is a mistake, and is said so.
    fn refuse_fields_beyond(&self, change: Change) -> Result<(), RequestError> {
        let sent = [
            ("version", self.version.is_some()),
            ("percent", self.percent.is_some()),
            ("config", self.config.is_some()),
            ("budget", self.budget.is_some()),
            ("reuse", self.reuse.is_some()),
        ];
        match sent
            .iter()
            .find(|(field, sent)| *sent && !change.fields().contains(field))
        {
            None => Ok(()),
            Some((field, _)) => {
                let takes = change.fields().join(", ");
                let text = format!("{field} has no meaning here; besides reason this takes: [{takes}]");
                Err(RequestError::bad_field(field, text))
            }
        }
    }

    fn stage(&self, change: Change) -> Result<TrialStage, RequestError> {
        if change == Change::Shadow {
            return Ok(TrialStage::Shadow);
        }
        let percent = self.percent.ok_or_else(|| {
            RequestError::bad_field("percent", "a canary needs percent, a whole number from 1 to 100")
        })?;
        Percent::try_from(percent)
            .map(|percent| TrialStage::Canary { percent })
            .map_err(|error| RequestError::bad_field("percent", error.to_string()))
    }
}

pub(super) async fn change(
    State(site): State<Arc<Site>>,
    path: ChangePath,
    headers: HeaderMap,
    order: Body,
) -> Result<Response, RequestError> {
    let (tenant, question, word) = errors::path(path)?;
    let path: SlotPath = Ok(Path((tenant, question)));
    let (slot, actor) = admin::enter(&site, path, &headers)?;
    let change = word.parse::<Change>().map_err(|()| {
        let text = format!(
            "{word:?} is nothing that can be done to a policy: activate, shadow, canary, promote, withdraw, rollback, pin, \
             unpin, disable or enable"
        );
        RequestError::new(ErrorKind::NotFound, text).with_code("unknown_change")
    })?;
    let turn = admin::turn_to_change(&site, &slot.scope, &headers)?;
    let order = body::read(order, ACTIVATION_MAX_BYTES).await?;
    let order = parse(&headers, &order)?;
    order.refuse_fields_beyond(change)?;
    let by = admin::by(&actor, &order.reason)?;
    let done = admin::on_desk(&site, turn, move |desk| {
        match order_of(desk, slot, change, order)? {
            Ok(order) => desk.submit(order, &by).map(Ok),
            Err(error) => Ok(Err(error)),
        }
    });
    match done.await? {
        Ok(done) => Ok(admin::told(done?)),
        Err(error) => Ok(admin::refusal(error)),
    }
}

/// An empty body is an empty order.
fn parse(headers: &HeaderMap, order: &[u8]) -> Result<ChangeBody, RequestError> {
    if order.is_empty() {
        return Ok(ChangeBody::default());
    }
    body::expect_json(headers)?;
    serde_json::from_slice(order).map_err(|error| {
        let text = format!(
            "the body must be {{\"version\", \"percent\", \"config\", \"budget\", \"reuse\", \"reason\"}}: {error}"
        );
        RequestError::new(ErrorKind::BadRequest, text)
    })
}

/// What the desk is asked.
fn order_of(
    desk: &PolicyDesk,
    slot: PolicySlot,
    change: Change,
    order: ChangeBody,
) -> Result<Result<Order, RequestError>, DeskError> {
    let version = match &order.version {
        None => None,
        Some(asked) => match admin::full_version(&desk.versions(&slot)?, asked) {
            Ok(sha256) => Some(sha256),
            Err(error) => return Ok(Err(error)),
        },
    };
    let order = match change {
        Change::Shadow | Change::Canary => {
            let stage = match order.stage(change) {
                Ok(stage) => stage,
                Err(error) => return Ok(Err(error)),
            };
            Order::Try(TrialOrder {
                slot,
                sha256: version,
                stage,
                config: order.config,
                budget: order.budget,
                reuse: order.reuse,
            })
        }
        Change::Promote => Order::Promote(slot),
        Change::Withdraw => Order::Withdraw(slot),
        Change::Rollback => Order::RollBack(RollBack { slot, to: version }),
        Change::Pin => Order::Pin(slot),
        Change::Unpin => Order::Unpin(slot),
        Change::Disable => Order::Disable(slot),
        Change::Enable => Order::Enable(slot),
    };
    Ok(Ok(order))
}
