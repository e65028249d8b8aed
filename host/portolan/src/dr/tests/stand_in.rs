//! A small store that speaks S3, in this process: PUT, GET, HEAD and LIST of one bucket, signed by query. Signatures are
//! worked out here from the published rules (AWS Signature Version 4), not with the code under test.

use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

pub(super) struct StandIn {
    address: std::net::SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    key: String,
    secret: String,
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
    /// PUTs that still succeed.
    puts: AtomicUsize,
}

/// A request as it came.
struct Asked {
    method: String,
    path: String,
    query: Vec<(String, String)>,
    host: String,
    body: Vec<u8>,
}

impl StandIn {
    pub(super) fn start(key: &str, secret: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            key: key.to_owned(),
            secret: secret.to_owned(),
            objects: Mutex::default(),
            puts: AtomicUsize::new(usize::MAX),
        });
        let theirs = Arc::clone(&shared);
        // Ends with the process: the tests' own.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&theirs);
                std::thread::spawn(move || drop(serve(stream, &shared)));
            }
        });
        Self { address, shared }
    }

    pub(super) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn fail_puts_after(&self, puts: usize) {
        self.shared.puts.store(puts, Ordering::SeqCst);
    }

    pub(super) fn work(&self) {
        self.shared.puts.store(usize::MAX, Ordering::SeqCst);
    }

    pub(super) fn objects(&self) -> usize {
        self.shared.objects.lock().unwrap().len()
    }

    pub(super) fn keys(&self) -> Vec<String> {
        self.shared.objects.lock().unwrap().keys().cloned().collect()
    }
}

fn serve(stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    while let Some(asked) = read(&mut reader)? {
        let (status, body) = answer(&asked, shared);
        let shown: &[u8] = if asked.method == "HEAD" { &[] } else { &body };
        write!(
            writer,
            "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )?;
        writer.write_all(shown)?;
    }
    Ok(())
}

fn read(reader: &mut BufReader<TcpStream>) -> std::io::Result<Option<Asked>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let (method, target) = (
        words.next().unwrap_or_default().to_owned(),
        words.next().unwrap_or_default().to_owned(),
    );
    let (mut length, mut host, mut chunked) = (0usize, String::new(), false);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let Some((name, value)) = header.trim_end().split_once(':') else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().unwrap_or(0),
            "host" => host = value.trim().to_owned(),
            "transfer-encoding" => chunked = true,
            _ => {}
        }
    }
    assert!(!chunked, "a store wants to know the length beforehand");
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (key.to_owned(), value.to_owned())
    };
    Ok(Some(Asked {
        method,
        path: path.to_owned(),
        query: query.split('&').filter(|p| !p.is_empty()).map(pair).collect(),
        host,
        body,
    }))
}

fn answer(asked: &Asked, shared: &Shared) -> (&'static str, Vec<u8>) {
    if !is_signed(asked, shared) {
        return (
            "403 Forbidden",
            b"<Error><Code>SignatureDoesNotMatch</Code></Error>".to_vec(),
        );
    }
    let mut objects = shared.objects.lock().unwrap();
    let key = asked
        .path
        .trim_start_matches("/backups")
        .trim_start_matches('/')
        .to_owned();
    match (asked.method.as_str(), key.is_empty()) {
        ("GET", true) => {
            let prefix = asked.query.iter().find(|(name, _)| name == "prefix");
            let prefix = prefix
                .map(|(_, value)| value.replace("%2F", "/"))
                .unwrap_or_default();
            let listed = objects
                .iter()
                .filter(|(key, _)| key.starts_with(&prefix))
                .map(|(key, bytes)| {
                    format!(
                        "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
                     <ETag>\"x\"</ETag><Size>{}</Size><StorageClass>STANDARD</StorageClass></Contents>",
                        bytes.len()
                    )
                });
            let text = format!(
                "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>backups</Name><IsTruncated>false</IsTruncated>\
                 <MaxKeys>1000</MaxKeys><EncodingType>url</EncodingType>{}</ListBucketResult>",
                listed.collect::<String>()
            );
            ("200 OK", text.into_bytes())
        }
        ("PUT", false) => {
            if shared
                .puts
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                .is_err()
            {
                return ("503 Service Unavailable", Vec::new());
            }
            objects.insert(key, asked.body.clone());
            ("200 OK", Vec::new())
        }
        ("GET" | "HEAD", false) => match objects.get(&key) {
            Some(bytes) => ("200 OK", bytes.clone()),
            None => ("404 Not Found", Vec::new()),
        },
        _ => ("405 Method Not Allowed", Vec::new()),
    }
}

/// Whether the query's signature is that of the secret over the request.
fn is_signed(asked: &Asked, shared: &Shared) -> bool {
    let of = |name: &str| {
        asked
            .query
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.replace("%2F", "/"))
    };
    let (Some(credential), Some(date), Some(signature)) =
        (of("X-Amz-Credential"), of("X-Amz-Date"), of("X-Amz-Signature"))
    else {
        return false;
    };
    let Some((key, scope)) = credential.split_once('/') else {
        return false;
    };
    let mut query: Vec<&(String, String)> = asked
        .query
        .iter()
        .filter(|(key, _)| key != "X-Amz-Signature")
        .collect();
    query.sort();
    let query: Vec<String> = query
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let canonical = format!(
        "{}\n{}\n{}\nhost:{}\n\nhost\nUNSIGNED-PAYLOAD",
        asked.method,
        asked.path,
        query.join("&"),
        asked.host
    );
    let text = format!(
        "AWS4-HMAC-SHA256\n{date}\n{scope}\n{}",
        hex::encode(Sha256::digest(canonical))
    );
    let mut signing = format!("AWS4{}", shared.secret).into_bytes();
    for part in scope.split('/') {
        signing = hmac(&signing, part.as_bytes());
    }
    key == shared.key && hex::encode(hmac(&signing, text.as_bytes())) == signature
}

fn hmac(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut block = [0; 64];
    match key.len() > 64 {
        true => block[..32].copy_from_slice(&Sha256::digest(key)),
        false => block[..key.len()].copy_from_slice(key),
    }
    let mixed = |with: u8| block.map(|byte| byte ^ with);
    let inner = Sha256::new()
        .chain_update(mixed(0x36))
        .chain_update(text)
        .finalize();
    Sha256::new()
        .chain_update(mixed(0x5c))
        .chain_update(inner)
        .finalize()
        .to_vec()
}
