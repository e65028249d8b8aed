//! A store that speaks S3. Requests are signed by query, so that bodies go as they are.

use super::error::DrError;
use super::target::Target;
use crate::config::without_credentials;
use rusty_s3::actions::ListObjectsV2;
use rusty_s3::{Bucket, Credentials, S3Action, UrlStyle};
use std::time::Duration;
use ureq::http::StatusCode;

/// How long a signature holds: longer than a part takes on a slow line.
const SIGNED_FOR: Duration = Duration::from_secs(3600);

/// The longest a request may take: a part of 64 MiB at 1 Mbit/s.
const PATIENCE: Duration = Duration::from_secs(600);

/// Times a request is tried.
const TRIES: u32 = 4;

/// The first pause between two tries; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(200);

/// The largest object that is read: a part, or the list of parts of a large service.
const OBJECT_MAX: u64 = 256 << 20;

/// How a store is reached. Credentials are taken from `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`.
#[derive(Clone, Debug, Default)]
pub struct S3Place {
    /// Its address; none: that of AWS in the region.
    pub endpoint: Option<String>,
    /// Its region; none: `us-east-1`.
    pub region: Option<String>,
    /// Key and secret instead of those of the environment.
    pub credentials: Option<(String, String)>,
}

pub(super) struct S3 {
    name: String,
    bucket: Bucket,
    credentials: Credentials,
    prefix: String,
    agent: ureq::Agent,
}

impl S3 {
    /// The bucket and prefix `BUCKET/PREFIX`.
    pub(super) fn open(bucket: &str, place: &S3Place) -> Result<Self, DrError> {
        let name = format!("s3://{bucket}");
        let fail = |detail: String| DrError::Target {
            place: name.clone(),
            detail,
        };
        let (bucket, prefix) = bucket.split_once('/').unwrap_or((bucket, ""));
        let prefix = match prefix.trim_matches('/') {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        };
        let region = place.region.clone().unwrap_or_else(|| "us-east-1".to_owned());
        let usual = || format!("https://s3.{region}.amazonaws.com");
        let endpoint = place.endpoint.clone().unwrap_or_else(usual);
        let url = endpoint.parse().map_err(|e| {
            let shown = without_credentials(&endpoint).unwrap_or_else(|| endpoint.clone());
            fail(format!("{shown:?} is no address: {e}"))
        })?;
        let bucket = Bucket::new(url, UrlStyle::Path, bucket.to_owned(), region);
        let from_environment = || {
            let var = |name| std::env::var(name).ok();
            Some((var("AWS_ACCESS_KEY_ID")?, var("AWS_SECRET_ACCESS_KEY")?))
        };
        let (key, secret) = place
            .credentials
            .clone()
            .or_else(from_environment)
            .ok_or_else(|| {
                fail("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment".to_owned())
            })?;
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(PATIENCE))
            .http_status_as_error(false)
            .build()
            .new_agent();
        Ok(Self {
            bucket: bucket.map_err(|e| fail(e.to_string()))?,
            credentials: Credentials::new(key, secret),
            prefix,
            agent,
            name,
        })
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Asks until there is an answer that trying again would not change.
    fn ask(
        &self,
        what: &str,
        ask: impl Fn() -> Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<ureq::http::Response<ureq::Body>, DrError> {
        let mut pause = PAUSE;
        let mut last = String::new();
        for tried in 0..TRIES {
            if tried > 0 {
                std::thread::sleep(pause);
                pause *= 2;
            }
            match ask() {
                Ok(answer) if answer.status().is_server_error() => last = format!("HTTP {}", answer.status()),
                Ok(answer) => return Ok(answer),
                Err(error) => last = error.to_string(),
            }
        }
        Err(self.failed(what, &format!("{last}, {TRIES} times")))
    }

    fn failed(&self, what: &str, detail: &str) -> DrError {
        DrError::Target {
            place: self.name.clone(),
            detail: format!("{what}: {detail}"),
        }
    }

    fn refused(&self, what: &str, answer: ureq::http::Response<ureq::Body>) -> DrError {
        let status = answer.status();
        let text = answer.into_body().read_to_string().unwrap_or_default();
        let said: String = text.chars().take(200).collect();
        self.failed(what, &format!("HTTP {status} {said}"))
    }
}

impl Target for S3 {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn size(&self, key: &str) -> Result<Option<u64>, DrError> {
        let what = format!("HEAD {key}");
        let object = self.key(key);
        let url = self
            .bucket
            .head_object(Some(&self.credentials), &object)
            .sign(SIGNED_FOR);
        let answer = self.ask(&what, || self.agent.head(url.as_str()).call())?;
        match answer.status() {
            StatusCode::NOT_FOUND => Ok(None),
            status if status.is_success() => {
                let length = answer.headers().get("content-length");
                let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
                length
                    .map(Some)
                    .ok_or_else(|| self.failed(&what, "the answer names no length"))
            }
            _ => Err(self.refused(&what, answer)),
        }
    }

    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), DrError> {
        let what = format!("PUT {key}");
        let object = self.key(key);
        let url = self
            .bucket
            .put_object(Some(&self.credentials), &object)
            .sign(SIGNED_FOR);
        let answer = self.ask(&what, || self.agent.put(url.as_str()).send(bytes))?;
        match answer.status().is_success() {
            true => Ok(()),
            false => Err(self.refused(&what, answer)),
        }
    }

    fn get(&self, key: &str) -> Result<Option<Vec<u8>>, DrError> {
        let what = format!("GET {key}");
        let object = self.key(key);
        let url = self
            .bucket
            .get_object(Some(&self.credentials), &object)
            .sign(SIGNED_FOR);
        let answer = self.ask(&what, || self.agent.get(url.as_str()).call())?;
        match answer.status() {
            StatusCode::NOT_FOUND => Ok(None),
            status if status.is_success() => {
                let body = answer
                    .into_body()
                    .into_with_config()
                    .limit(OBJECT_MAX)
                    .read_to_vec();
                body.map(Some)
                    .map_err(|error| self.failed(&what, &error.to_string()))
            }
            _ => Err(self.refused(&what, answer)),
        }
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, DrError> {
        let what = format!("LIST {prefix}");
        let (mut keys, mut further) = (Vec::new(), None::<String>);
        loop {
            let mut action = self.bucket.list_objects_v2(Some(&self.credentials));
            action.with_prefix(self.key(prefix));
            if let Some(token) = &further {
                action.with_continuation_token(token.clone());
            }
            let url = action.sign(SIGNED_FOR);
            let answer = self.ask(&what, || self.agent.get(url.as_str()).call())?;
            if !answer.status().is_success() {
                return Err(self.refused(&what, answer));
            }
            let text = answer.into_body().read_to_string();
            let text = text.map_err(|error| self.failed(&what, &error.to_string()))?;
            let listed = ListObjectsV2::parse_response(&text);
            let listed = listed.map_err(|error| self.failed(&what, &error.to_string()))?;
            let own = |key: String| key.strip_prefix(&self.prefix).map(str::to_owned);
            keys.extend(listed.contents.into_iter().filter_map(|object| own(object.key)));
            further = listed.next_continuation_token;
            if further.is_none() {
                keys.sort();
                return Ok(keys);
            }
        }
    }
}
