//! Talking to a registry: the few calls of the distribution specification that push and pull one component.

use super::layout::{self, BadLayout, Descriptor};
use super::{Address, Credentials};
use portolan_ports::VersionSignature;
use std::cell::RefCell;
use std::io::Read;
use std::time::Duration;
use ureq::http::{Response, StatusCode};

/// Longest a call may take altogether: 24 MiB over 2 Mbit/s.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// Largest component taken: what the check would take.
pub const COMPONENT_MAX_BYTES: u64 = 24 << 20;

/// Largest manifest or token read. A manifest with one layer has some 700 bytes.
const ANSWER_MAX_BYTES: u64 = 256 << 10;

type Answer = Response<ureq::Body>;

/// Why a registry did not do it.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// It cannot be reached.
    #[error("the registry {host} cannot be reached: {detail}")]
    Unreachable {
        /// Which one.
        host: String,
        /// Why.
        detail: String,
    },
    /// It said no.
    #[error("the registry answered {what} with {status}{}", advice(.status))]
    Refused {
        /// What was asked.
        what: String,
        /// Its answer.
        status: StatusCode,
    },
    /// It wants to be asked in a way that is not spoken here, or unsafe.
    #[error("the registry asks for something unexpected: {0}")]
    Unexpected(String),
    /// It is not a policy that lies there.
    #[error("{place}: {source}")]
    Layout {
        /// Where.
        place: Address,
        /// What is wrong.
        source: BadLayout,
    },
    /// What came is not what was named.
    #[error("{what} was asked for and {got} came; nothing was kept")]
    Damaged {
        /// What was named.
        what: String,
        /// What came.
        got: String,
    },
    /// The component is too large.
    #[error("the component has {0} bytes, at most {COMPONENT_MAX_BYTES} are taken; nothing was downloaded")]
    TooLarge(u64),
}

fn advice(status: &StatusCode) -> &'static str {
    match status.as_u16() {
        401 | 403 => "; give --username and PORTOLAN_REGISTRY_PASSWORD, or use `docker login`",
        404 => "; is the repository's name right, and the tag?",
        _ => "",
    }
}

/// What was pushed.
#[derive(Debug)]
pub struct Pushed {
    /// Where it can be had for ever.
    pub pinned: Address,
}

/// What was pulled.
#[derive(Debug)]
pub struct Pulled {
    /// Where it can be had for ever.
    pub pinned: Address,
    /// The component.
    pub component: Vec<u8>,
    /// Its signatures, unchecked.
    pub signatures: Vec<VersionSignature>,
}

/// A repository of a registry.
#[derive(Debug)]
pub struct Registry {
    agent: ureq::Agent,
    place: Address,
    scheme: &'static str,
    credentials: Option<Credentials>,
    /// The `Authorization` header that was good for the last call.
    granted: RefCell<Option<String>>,
}

/// Whether plain HTTP may leave this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlainHttp {
    /// Only to a registry on this machine.
    Loopback,
    /// To any registry, since the user said so.
    Anywhere,
}

impl Registry {
    /// A client of the repository at `place`.
    pub fn new(place: Address, plain: PlainHttp, credentials: Option<Credentials>) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(CALL_TIMEOUT))
            .http_status_as_error(false)
            .build();
        let scheme = match plain == PlainHttp::Anywhere || place.is_loopback() {
            true => "http",
            false => "https",
        };
        Self {
            agent: config.new_agent(),
            place,
            scheme,
            credentials,
            granted: RefCell::new(None),
        }
    }

    /// Pushes a component with its signatures under the address's tag.
    pub fn push(&self, component: &[u8], signatures: &[VersionSignature]) -> Result<Pushed, RegistryError> {
        if self.place.is_pinned() {
            return Err(RegistryError::Unexpected(
                "a push needs a tag, not a digest".to_owned(),
            ));
        }
        let package = layout::pack(component, signatures).map_err(|e| self.layout(e))?;
        self.put_blob(component)?;
        self.put_blob(&package.config)?;
        let url = self.url(&format!("manifests/{}", self.place.reference));
        let put = self.ask("push", &|header| {
            let request = self.agent.put(&url).header("content-type", layout::MANIFEST);
            let request = with(request, header);
            request.send(&package.manifest[..])
        })?;
        expect("the manifest", &put, &[201])?;
        let pinned = self.pinned(&layout::name_of(&package.manifest));
        Ok(Pushed { pinned })
    }

    /// Pulls a component. Its size is looked at before it is downloaded, its digest after.
    pub fn pull(&self) -> Result<Pulled, RegistryError> {
        let (manifest, digest) = self.manifest()?;
        let (layer, signatures) = layout::unpack(&manifest).map_err(|e| self.layout(e))?;
        if layer.size > COMPONENT_MAX_BYTES {
            return Err(RegistryError::TooLarge(layer.size));
        }
        Ok(Pulled {
            pinned: self.pinned(&digest),
            component: self.blob(&layer)?,
            signatures,
        })
    }

    fn manifest(&self) -> Result<(Vec<u8>, String), RegistryError> {
        let url = self.url(&format!("manifests/{}", self.place.reference));
        let answer = self.ask("pull", &|header| {
            let request = self.agent.get(&url).header("accept", layout::MANIFEST);
            with(request, header).call()
        })?;
        expect(&self.place.to_string(), &answer, &[200])?;
        let told = header(&answer, "docker-content-digest");
        let manifest = self.body(answer, ANSWER_MAX_BYTES)?;
        let digest = layout::name_of(&manifest);
        let asked = self.place.is_pinned().then(|| self.place.reference.clone());
        for what in asked
            .into_iter()
            .chain(told.filter(|told| told.starts_with("sha256:")))
        {
            if what != digest {
                return Err(RegistryError::Damaged { what, got: digest });
            }
        }
        Ok((manifest, digest))
    }

    fn blob(&self, layer: &Descriptor) -> Result<Vec<u8>, RegistryError> {
        let url = self.url(&format!("blobs/{}", layer.digest));
        let answer = self.ask("pull", &|header| with(self.agent.get(&url), header).call())?;
        expect("the component", &answer, &[200])?;
        let bytes = self.body(answer, layer.size)?;
        let got = layout::name_of(&bytes);
        if got != layer.digest || bytes.len() as u64 != layer.size {
            let what = format!("{} ({} bytes)", layer.digest, layer.size);
            let got = format!("{got} ({} bytes)", bytes.len());
            return Err(RegistryError::Damaged { what, got });
        }
        Ok(bytes)
    }

    /// Uploads bytes that the repository does not hold yet.
    fn put_blob(&self, bytes: &[u8]) -> Result<(), RegistryError> {
        let digest = layout::name_of(bytes);
        let url = self.url(&format!("blobs/{digest}"));
        let there = self.ask("push", &|header| with(self.agent.head(&url), header).call())?;
        if there.status() == StatusCode::OK {
            return Ok(());
        }
        let url = self.url("blobs/uploads/");
        let begun = self.ask("push", &|header| with(self.agent.post(&url), header).send_empty())?;
        expect("an upload", &begun, &[202])?;
        let location = self.location(&begun)?;
        let mark = if location.contains('?') { '&' } else { '?' };
        let url = format!("{location}{mark}digest={digest}");
        let put = self.ask("push", &|header| {
            let request = self
                .agent
                .put(&url)
                .header("content-type", "application/octet-stream");
            with(request, header).send(bytes)
        })?;
        expect("the component", &put, &[201])
    }

    /// Where an upload continues: at this registry only, as the credentials go along.
    fn location(&self, begun: &Answer) -> Result<String, RegistryError> {
        let location = header(begun, "location").unwrap_or_default();
        let own = format!("{}://{}/", self.scheme, self.place.host);
        match location.strip_prefix('/') {
            Some(path) => Ok(own + path),
            None if location.starts_with(&own) => Ok(location),
            None => Err(RegistryError::Unexpected(format!("an upload to {location:?}"))),
        }
    }

    /// Makes a call; makes it again with what the registry asks for when it is refused at first.
    fn ask(
        &self,
        action: &str,
        call: &dyn Fn(Option<&str>) -> Result<Answer, ureq::Error>,
    ) -> Result<Answer, RegistryError> {
        let granted = self.granted.borrow().clone();
        let answer = call(granted.as_deref()).map_err(|e| self.unreachable(&e))?;
        if answer.status() != StatusCode::UNAUTHORIZED {
            return Ok(answer);
        }
        let challenge = header(&answer, "www-authenticate").unwrap_or_default();
        let Some(header) = self.authorization(&challenge, action)? else {
            return Ok(answer);
        };
        let answer = call(Some(&header)).map_err(|e| self.unreachable(&e))?;
        *self.granted.borrow_mut() = Some(header);
        Ok(answer)
    }

    /// What to show for a challenge; `None`: there is nothing to show.
    fn authorization(&self, challenge: &str, action: &str) -> Result<Option<String>, RegistryError> {
        let (kind, fields) = challenge.split_once(' ').unwrap_or((challenge, ""));
        if kind.eq_ignore_ascii_case("basic") {
            return Ok(self.credentials.as_ref().map(Credentials::header));
        }
        if !kind.eq_ignore_ascii_case("bearer") {
            return Err(RegistryError::Unexpected(format!("authentication by {kind:?}")));
        }
        let realm = field(fields, "realm").unwrap_or_default();
        let safe = realm.starts_with("https://") || (self.scheme == "http" && realm.starts_with("http://"));
        if !safe {
            return Err(RegistryError::Unexpected(format!("a token from {realm:?}")));
        }
        let rights = if action == "push" { "pull,push" } else { "pull" };
        let scope = format!("repository:{}:{rights}", self.place.repository);
        let mut request = self.agent.get(&realm).query("scope", scope);
        if let Some(service) = field(fields, "service") {
            request = request.query("service", service);
        }
        let shown = self.credentials.as_ref().map(Credentials::header);
        let answer = with(request, shown.as_deref()).call();
        let answer = answer.map_err(|e| self.unreachable(&e))?;
        expect("a token", &answer, &[200])?;
        let body = self.body(answer, ANSWER_MAX_BYTES)?;
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let token = body["token"].as_str().or_else(|| body["access_token"].as_str());
        let token =
            token.ok_or_else(|| RegistryError::Unexpected("a token service without a token".to_owned()))?;
        Ok(Some(format!("Bearer {token}")))
    }

    /// A body of at most `most` bytes, and one more where there are more.
    fn body(&self, answer: Answer, most: u64) -> Result<Vec<u8>, RegistryError> {
        let mut bytes = Vec::new();
        let mut reader = answer.into_body().into_reader().take(most.saturating_add(1));
        let read = reader.read_to_end(&mut bytes);
        read.map_err(|e| RegistryError::Unreachable {
            host: self.place.host.clone(),
            detail: e.to_string(),
        })?;
        Ok(bytes)
    }

    fn url(&self, rest: &str) -> String {
        let Address { host, repository, .. } = &self.place;
        format!("{}://{host}/v2/{repository}/{rest}", self.scheme)
    }

    fn pinned(&self, digest: &str) -> Address {
        Address {
            reference: digest.to_owned(),
            ..self.place.clone()
        }
    }

    fn layout(&self, source: BadLayout) -> RegistryError {
        let place = self.place.clone();
        RegistryError::Layout { place, source }
    }

    fn unreachable(&self, error: &ureq::Error) -> RegistryError {
        RegistryError::Unreachable {
            host: self.place.host.clone(),
            detail: error.to_string(),
        }
    }
}

fn with<B>(request: ureq::RequestBuilder<B>, authorization: Option<&str>) -> ureq::RequestBuilder<B> {
    match authorization {
        Some(value) => request.header("authorization", value),
        None => request,
    }
}

fn expect(what: &str, answer: &Answer, good: &[u16]) -> Result<(), RegistryError> {
    match good.contains(&answer.status().as_u16()) {
        true => Ok(()),
        false => Err(RegistryError::Refused {
            what: what.to_owned(),
            status: answer.status(),
        }),
    }
}

fn header(answer: &Answer, name: &str) -> Option<String> {
    let value = answer.headers().get(name)?;
    value.to_str().ok().map(str::to_owned)
}

/// A field of a challenge, `name="value"`.
fn field(fields: &str, name: &str) -> Option<String> {
    let begin = fields.find(&format!("{name}=\""))? + name.len() + 2;
    let rest = &fields[begin..];
    rest.find('"').map(|end| rest[..end].to_owned())
}
