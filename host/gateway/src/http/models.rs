//! `/v1/models`: what can be asked for.

use super::{auth, errors};
use crate::error::{ErrorKind, RequestError};
use crate::site::{ServedModel, Site};
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use portolan_base::ModelName;
use serde::Serialize;
use std::sync::Arc;

/// A model in OpenAI's shape, with the context length as vLLM names it.
#[derive(Debug, Serialize)]
pub(super) struct ModelCard {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    max_model_len: u32,
}

/// OpenAI's list object.
#[derive(Debug, Serialize)]
pub(super) struct List<T> {
    object: &'static str,
    data: Vec<T>,
}

impl<T> List<T> {
    pub(super) const fn of(data: Vec<T>) -> Self {
        Self { object: "list", data }
    }
}

pub(super) async fn list(
    State(site): State<Arc<Site>>,
    headers: HeaderMap,
) -> Result<Json<List<ModelCard>>, RequestError> {
    auth::principal(&site, &headers)?;
    Ok(Json(List::of(
        site.parts
            .models
            .iter()
            .map(|(name, model)| card(name, model))
            .collect(),
    )))
}

pub(super) async fn one(
    State(site): State<Arc<Site>>,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Json<ModelCard>, RequestError> {
    auth::principal(&site, &headers)?;
    let id = errors::path(id)?;
    let found = site.parts.models.iter().find(|(name, _)| name.as_str() == id);
    found.map(|(name, model)| Json(card(name, model))).ok_or_else(|| {
        let message = "The model does not exist. GET /v1/models lists those that do.";
        RequestError {
            param: Some("model".to_owned()),
            ..RequestError::new(ErrorKind::NotFound, message)
        }
        .with_code("model_not_found")
    })
}

fn card(name: &ModelName, model: &ServedModel) -> ModelCard {
    ModelCard {
        id: name.to_string(),
        object: "model",
        created: model.created,
        owned_by: "portolan",
        max_model_len: model.description.context_tokens.0,
    }
}
