//! A registry that is right, Debian's `docker-registry`, and ones that are wrong, made of canned answers.

use super::client::{COMPONENT_MAX_BYTES, PlainHttp};
use super::*;
use portolan_ports::VersionSignature;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn component(name: &str) -> Vec<u8> {
    let folder = std::env::var_os("PORTOLAN_PLUGINS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/dist"),
        PathBuf::from,
    );
    let path = folder.join(format!("{name}.wasm"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}; run `make plugins`", path.display()))
}

fn signature(digit: &str) -> VersionSignature {
    VersionSignature {
        key_id: "ab".repeat(8),
        signature: digit.repeat(128),
    }
}

fn at(host: &str, rest: &str) -> Registry {
    let place = format!("oci://{host}/{rest}").parse().unwrap();
    Registry::new(place, PlainHttp::Loopback, None)
}

/// Debian's registry on a free port of this machine; ended when it is dropped.
struct DockerRegistry {
    process: Child,
    host: String,
    _folder: tempfile::TempDir,
}

impl Drop for DockerRegistry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Who may enter a registry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doors {
    Open,
    /// "tess" with the password "secret".
    Locked,
}

/// What `htpasswd -B` writes for "tess" and "secret".
const HTPASSWD: &str = "tess:$2b$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n";

impl DockerRegistry {
    /// `None` where it is not installed and the environment does not insist.
    fn start(doors: Doors) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let config = folder.path().join("config.yml");
        let passwords = folder.path().join("htpasswd");
        std::fs::write(&passwords, HTPASSWD).unwrap();
        let auth = match doors {
            Doors::Open => String::new(),
            Doors::Locked => format!(
                "auth: {{htpasswd: {{realm: here, path: '{}'}}}}\n",
                passwords.display()
            ),
        };
        let text = format!(
            "{auth}version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: '{}'}}}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n",
            folder.path().join("data").display()
        );
        std::fs::write(&config, text).unwrap();
        let started = Command::new("docker-registry")
            .arg("serve")
            .arg(&config)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let process = match started {
            Ok(process) => process,
            Err(error) => {
                let insisted = std::env::var_os("PORTOLAN_TEST_REGISTRY").is_some();
                assert!(
                    !insisted,
                    "docker-registry does not start: {error}; apt-get install docker-registry"
                );
                return None;
            }
        };
        let registry = Self {
            process,
            host: format!("127.0.0.1:{port}"),
            _folder: folder,
        };
        let began = Instant::now();
        while TcpStream::connect(&registry.host).is_err() {
            assert!(
                began.elapsed() < Duration::from_secs(30),
                "docker-registry opens no port"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(registry)
    }
}

#[test]
fn what_was_pushed_to_debians_registry_is_pulled_by_tag_and_by_digest() {
    let Some(registry) = DockerRegistry::start(Doors::Open) else {
        eprintln!("NOT TESTED: docker-registry is not installed (tests/run installs it)");
        return;
    };
    let (first, second) = (component("threshold"), component("ttft"));
    let tagged = at(&registry.host, "acme/mine:1.0");
    assert!(
        matches!(tagged.pull(), Err(RegistryError::Refused { .. })),
        "nothing there yet"
    );

    let pushed = tagged.push(&first, &[signature("1")]).unwrap();
    let pulled = tagged.pull().unwrap();
    assert_eq!((&pulled.component, &pulled.pinned), (&first, &pushed.pinned));
    assert_eq!(pulled.signatures, [signature("1")]);
    let again = tagged.push(&first, &[signature("1")]).unwrap();
    assert_eq!(again.pinned, pushed.pinned, "the same component, the same digest");

    tagged.push(&second, &[]).unwrap();
    let moved = tagged.pull().unwrap();
    assert_eq!((&moved.component, moved.signatures.len()), (&second, 0));
    let pinned = Registry::new(pushed.pinned, PlainHttp::Loopback, None);
    assert_eq!(
        pinned.pull().unwrap().component,
        first,
        "the digest still names the first"
    );
    assert!(matches!(
        pinned.push(&first, &[]),
        Err(RegistryError::Unexpected(_))
    ));
    assert!(matches!(
        at(&registry.host, "acme/mine:2.0").push(b"no component", &[]),
        Err(RegistryError::Layout { .. })
    ));
}

#[test]
fn a_registry_with_a_password_is_entered_with_it_only() {
    let Some(registry) = DockerRegistry::start(Doors::Locked) else {
        eprintln!("NOT TESTED: docker-registry is not installed (tests/run installs it)");
        return;
    };
    let component = component("threshold");
    let with = |credentials: Option<Credentials>| {
        let place = format!("oci://{}/acme/mine:1.0", registry.host).parse().unwrap();
        Registry::new(place, PlainHttp::Loopback, credentials)
    };
    for credentials in [None, Some(Credentials::new("tess", "wrong"))] {
        let refused = with(credentials).push(&component, &[]).unwrap_err().to_string();
        assert!(refused.contains("401") && !refused.contains("wrong"), "{refused}");
    }
    let tess = with(Some(Credentials::new("tess", "secret")));
    tess.push(&component, &[signature("1")]).unwrap();
    assert_eq!(tess.pull().unwrap().component, component);
    assert!(with(None).pull().is_err(), "not without it");
}

/// Answers GET by path, whatever it was told, until the test ends; the host's address.
fn canned(answers: Vec<(String, String, Vec<u8>)>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let answers: BTreeMap<_, _> = answers
        .into_iter()
        .map(|(path, head, body)| (path, (head, body)))
        .collect();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream);
            let mut first = String::new();
            let _ = reader.read_line(&mut first);
            let mut authorized = String::new();
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).unwrap_or(0) <= 2 {
                    break;
                }
                if line.to_ascii_lowercase().starts_with("authorization:") {
                    authorized = line.trim().to_ascii_lowercase();
                }
            }
            let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
            let (head, body) = match answers
                .get(&format!("{path} {authorized}"))
                .or_else(|| answers.get(&path))
            {
                Some((head, body)) => (head.clone(), body.clone()),
                None => ("404 Not Found".to_owned(), Vec::new()),
            };
            let mut stream = reader.into_inner();
            let _ = write!(
                stream,
                "HTTP/1.1 {head}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(&body);
            let _ = stream.flush();
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.take(1).read(&mut [0]);
        }
    });
    host
}

fn manifest(layer_type: &str, bytes: &[u8], size: u64) -> Vec<u8> {
    let digest = layout::name_of(bytes);
    serde_json::to_vec(&serde_json::json!({
        "schemaVersion": 2,
        "config": {"mediaType": "application/vnd.wasm.config.v0+json", "digest": digest, "size": 2},
        "layers": [{"mediaType": layer_type, "digest": digest, "size": size}],
    }))
    .unwrap()
}

fn ok(path: &str, body: &[u8]) -> (String, String, Vec<u8>) {
    (format!("/v2/mine/{path}"), "200 OK".to_owned(), body.to_vec())
}

#[test]
fn a_registry_that_sends_something_else_is_not_believed() {
    let bytes = b"the component".as_slice();
    let blob = format!("blobs/{}", layout::name_of(bytes));
    let len = bytes.len() as u64;
    let pull = |manifest: Vec<u8>, body: &[u8]| {
        let host = canned(vec![ok("manifests/1", &manifest), ok(&blob, body)]);
        at(&host, "mine:1").pull()
    };
    let wasm = "application/wasm";
    assert_eq!(pull(manifest(wasm, bytes, len), bytes).unwrap().component, bytes);
    let old = manifest("application/vnd.wasm.content.layer.v1+wasm", bytes, len);
    assert_eq!(pull(old, bytes).unwrap().component, bytes, "the layout before");

    for other in [
        b"the componenz".as_slice(),
        b"the compon",
        b"the component and more",
    ] {
        let got = pull(manifest(wasm, bytes, len), other);
        assert!(matches!(got, Err(RegistryError::Damaged { .. })), "{got:?}");
    }
    let got = pull(manifest(wasm, bytes, COMPONENT_MAX_BYTES + 1), bytes);
    assert!(matches!(got, Err(RegistryError::TooLarge(_))), "{got:?}");
    for manifest in [
        b"{}".to_vec(),
        b"<html>".to_vec(),
        manifest("application/vnd.oci.image.layer.v1.tar+gzip", bytes, len),
    ] {
        let got = pull(manifest, bytes);
        assert!(matches!(got, Err(RegistryError::Layout { .. })), "{got:?}");
    }

    let good = manifest(wasm, bytes, len);
    let pinned = format!("mine@sha256:{}", "0a".repeat(32));
    let path = format!("manifests/sha256:{}", "0a".repeat(32));
    let host = canned(vec![ok(&path, &good), ok(&blob, bytes)]);
    let got = at(&host, &pinned).pull();
    assert!(
        matches!(got, Err(RegistryError::Damaged { .. })),
        "another manifest: {got:?}"
    );
    let host = canned(vec![]);
    let got = at(&host, "mine:1").pull();
    assert!(matches!(got, Err(RegistryError::Refused { .. })), "{got:?}");
}

#[test]
fn a_token_is_fetched_where_the_registry_says_unless_that_is_unsafe() {
    let bytes = b"the component".as_slice();
    let good = manifest("application/wasm", bytes, bytes.len() as u64);
    let challenge = |realm: &str| {
        let head = format!("401 Unauthorized\r\nwww-authenticate: Bearer realm=\"{realm}\",service=\"s\"");
        ("/v2/mine/manifests/1".to_owned(), head, Vec::new())
    };
    let token = "/token?scope=repository%3Amine%3Apull&service=s".to_owned();
    let tokens = canned(vec![(token, "200 OK".to_owned(), br#"{"token": "t0"}"#.to_vec())]);
    let granted = (
        "/v2/mine/manifests/1 authorization: bearer t0".to_owned(),
        "200 OK".to_owned(),
        good,
    );
    let blob = ok(&format!("blobs/{}", layout::name_of(bytes)), bytes);
    let host = canned(vec![challenge(&format!("http://{tokens}/token")), granted, blob]);
    assert_eq!(at(&host, "mine:1").pull().unwrap().component, bytes);

    let host = canned(vec![challenge("ftp://example.com/token")]);
    let got = at(&host, "mine:1").pull();
    assert!(matches!(got, Err(RegistryError::Unexpected(_))), "{got:?}");
}
