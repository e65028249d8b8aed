//! `portolan policy keygen`, `sign` and `verify`: keys and detached signatures, without a server.

use super::output::{Failure, json, line};
use super::policy::{read, said_of_finding};
use crate::signing::{KeyBook, PublicKey, SecretKey, Trust, TrustedKey, digest};
use crate::system::{OsRandom, SystemClock};
use clap::Subcommand;
use portolan_base::Clock;
use portolan_policy::Scope;
use portolan_ports::{Finding, SIGNATURES_MAX_BYTES, Signatures, Signed, VersionSignature};
use std::ffi::OsString;
use std::fmt::Write;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// What can be done with keys and signatures.
#[derive(Debug, Subcommand)]
pub enum SigningCommand {
    /// Draw a key pair: NAME.key, which signs and stays with you, and NAME.pub, which goes into signing_keys.
    Keygen {
        /// Beginning of the two files' names.
        #[arg(long, short, default_value = "policy", value_name = "NAME")]
        output: PathBuf,
    },
    /// Sign a component: FILE.sig beside it.
    Sign {
        /// The component.
        file: PathBuf,
        /// The secret key, a file of `policy keygen`.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// Add to the signatures that FILE.sig holds, as for a rotation of keys.
        #[arg(long)]
        add: bool,
    },
    /// Say whether FILE.sig holds a good signature by one of the keys.
    Verify {
        /// The component.
        file: PathBuf,
        /// Public keys, `ed25519:HEX` or files that hold one.
        #[arg(long, required = true, num_args = 1.., value_name = "PUB")]
        keys: Vec<String>,
    },
}

pub(super) fn run(command: SigningCommand, as_json: bool) -> Result<(), Failure> {
    let done = match command {
        SigningCommand::Keygen { output } => keygen(&output, as_json),
        SigningCommand::Sign { file, key, add } => sign(&file, &key, add, as_json),
        SigningCommand::Verify { file, keys } => verify(&file, &keys, as_json),
    };
    done.map_err(|e| e.as_json(as_json))
}

fn keygen(output: &Path, as_json: bool) -> Result<(), Failure> {
    let (secret_file, public_file) = (beside_name(output, ".key"), beside_name(output, ".pub"));
    let secret = SecretKey::draw(&OsRandom);
    let public = secret.public();
    secret
        .write(&secret_file)
        .map_err(|e| Failure::new(format!("{}: {e}", secret_file.display())))?;
    write(&public_file, &format!("{public}\n"))?;
    let id = public.id();
    if as_json {
        let (secret_file, public_file) = (
            secret_file.display().to_string(),
            public_file.display().to_string(),
        );
        return json(&serde_json::json!({
            "key_id": id, "public": public.to_string(), "secret_file": secret_file, "public_file": public_file,
        }));
    }
    line(format!("{public}"));
    line(format!("key id {id}"));
    line(format!(
        "secret key in {}: keep it where secrets are kept",
        secret_file.display()
    ));
    Ok(())
}

fn sign(file: &Path, key: &Path, add: bool, as_json: bool) -> Result<(), Failure> {
    let component = read(file)?;
    let secret = SecretKey::read(key).map_err(|e| Failure::new(format!("{}: {e}", key.display())))?;
    let signature = secret.sign(&component);
    let output = beside_name(file, ".sig");
    let kept = match add {
        true => signatures_beside(file)?,
        false => Vec::new(),
    };
    let all = VersionSignature::merged(&kept, std::slice::from_ref(&signature));
    let mut text = format!("# sha256 {}\n", digest(&component));
    for signature in &all {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{signature}");
    }
    write(&output, &text)?;
    if as_json {
        let output = output.display().to_string();
        return json(&serde_json::json!({ "signature_file": output, "key_id": signature.key_id }));
    }
    line(format!("{}: signed by {}", output.display(), signature.key_id));
    Ok(())
}

fn verify(file: &Path, keys: &[String], as_json: bool) -> Result<(), Failure> {
    let component = read(file)?;
    let keys = keys.iter().map(|key| {
        let key = public_key(key)?;
        Ok(TrustedKey { key, not_after: None })
    });
    let book = KeyBook {
        platform: Trust {
            required: true,
            keys: keys.collect::<Result<_, Failure>>()?,
        },
        ..KeyBook::default()
    };
    let signatures = signatures_beside(file)?;
    let sha256 = digest(&component);
    let findings = book.judge(&Signed {
        scope: &Scope::Platform,
        sha256: &sha256,
        signatures: &signatures,
        at: SystemClock::start().now(),
    });
    let ids: Vec<String> = book
        .platform
        .keys
        .iter()
        .map(|trusted| trusted.key.id())
        .collect();
    let findings: Vec<Finding> = findings
        .into_iter()
        .map(|finding| of_verify(finding, file, &signatures, &ids))
        .collect();
    let ok = findings.is_empty();
    if as_json {
        json(
            &serde_json::json!({ "ok": ok, "sha256": sha256, "signatures": signatures, "findings": findings }),
        )?;
    } else if ok {
        line(format!("{}: the signature is good", file.display()));
    } else {
        findings.iter().flat_map(said_of_finding).for_each(line);
    }
    match ok {
        true => Ok(()),
        false if as_json => Err(Failure::silent()),
        false => Err(Failure::new(format!("{} has no good signature", file.display()))),
    }
}

/// A finding in the words of whoever names the keys: no platform and no operator has a say here.
fn of_verify(finding: Finding, file: &Path, signatures: &[VersionSignature], keys: &[String]) -> Finding {
    let (keys, file) = (keys.join(", "), file.display());
    let (message, help) = match finding.code.as_str() {
        "unsigned" => (
            format!("there is no signature in {file}.sig"),
            format!("sign it: `portolan policy sign {file} --key KEY`; or fetch the .sig that came with it"),
        ),
        "unknown-key" => {
            let by: Vec<&str> = signatures.iter().map(|signature| &*signature.key_id).collect();
            (
                format!("it is signed by {}, and the keys given are {keys}", by.join(", ")),
                "give the signer's public key with --keys, or sign it with one of these".to_owned(),
            )
        }
        _ => return finding,
    };
    Finding {
        message,
        help,
        ..finding
    }
}

/// A public key as typed: the key, or a file that holds one.
fn public_key(typed: &str) -> Result<PublicKey, Failure> {
    let text = match typed.starts_with("ed25519:") {
        true => typed.to_owned(),
        false => std::fs::read_to_string(typed).map_err(|e| {
            let text = format!(
                "{typed}: {e}; --keys takes public keys, ed25519:HEX, or files that hold one (NAME.pub of `portolan \
                 policy keygen`)"
            );
            Failure::new(text)
        })?,
    };
    text.parse().map_err(|e| Failure::new(format!("{typed}: {e}")))
}

/// The text of the signatures that lie beside a component; empty when there are none.
pub(super) fn beside(file: &Path) -> Result<String, Failure> {
    let path = beside_name(file, ".sig");
    let failed = |e: std::io::Error| Failure::new(format!("{}: {e}", path.display()));
    let found = match std::fs::File::open(&path) {
        Ok(found) => found,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(String::new()),
        Err(e) => return Err(failed(e)),
    };
    let mut text = String::new();
    let most = SIGNATURES_MAX_BYTES as u64 + 1;
    found.take(most).read_to_string(&mut text).map_err(failed)?;
    if text.trim().is_empty() {
        return Ok(String::new());
    }
    VersionSignature::read_all(&text).map_err(|e| Failure::new(format!("{}: {e}", path.display())))?;
    Ok(text)
}

fn signatures_beside(file: &Path) -> Result<Vec<VersionSignature>, Failure> {
    let text = beside(file)?;
    match text.is_empty() {
        true => Ok(Vec::new()),
        false => {
            let path = beside_name(file, ".sig");
            VersionSignature::read_all(&text).map_err(|e| Failure::new(format!("{}: {e}", path.display())))
        }
    }
}

/// `FILE` and what is added to its name.
pub(super) fn beside_name(file: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(file);
    name.push(suffix);
    PathBuf::from(name)
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|e| Failure::new(format!("{}: {e}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_key_or_a_signature_is_said_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let said = |done: Result<(), Failure>| format!("{:?}", done.unwrap_err());
        keygen(&at("mine"), true).unwrap();
        keygen(&at("other"), true).unwrap();
        std::fs::write(at("p.wasm"), b"bytes").unwrap();

        let again = said(keygen(&at("mine"), false));
        assert!(
            again.contains("never overwritten; choose another name"),
            "{again}"
        );
        let public = said(sign(&at("p.wasm"), &at("mine.pub"), false, false));
        assert!(
            public.contains("that is a public key, which cannot sign"),
            "{public}"
        );
        let missing = said(sign(&at("p.wasm"), &at("none.key"), false, false));
        assert!(
            missing.contains("no such file; `portolan policy keygen"),
            "{missing}"
        );
        let typo = said(verify(&at("p.wasm"), &["none.pub".into()], false));
        assert!(typo.contains("--keys takes public keys"), "{typo}");

        let finding = |code: &str| Finding {
            code: code.into(),
            severity: portolan_ports::Severity::Error,
            message: "the platform demands one".into(),
            help: "ask the operator".into(),
        };
        let signed = [VersionSignature {
            key_id: "aa".into(),
            signature: String::new(),
        }];
        let of = |code: &str| of_verify(finding(code), Path::new("p.wasm"), &signed, &["bb".to_owned()]);
        assert_eq!(of("unsigned").message, "there is no signature in p.wasm.sig");
        assert_eq!(
            of("unknown-key").message,
            "it is signed by aa, and the keys given are bb"
        );
        for code in ["unsigned", "unknown-key"] {
            let said = of(code).message + &of(code).help;
            assert!(!said.contains("platform") && !said.contains("operator"), "{said}");
        }
        assert_eq!(of("bad-signature"), finding("bad-signature"));
    }

    #[test]
    fn a_key_pair_signs_and_verifies_and_a_changed_component_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        keygen(&at("old"), false).unwrap();
        keygen(&at("new"), true).unwrap();
        assert!(keygen(&at("old"), false).is_err(), "a key is never overwritten");
        let public = |name: &str| vec![at(name).display().to_string()];

        std::fs::write(at("p.wasm"), b"bytes").unwrap();
        assert!(
            verify(&at("p.wasm"), &public("old.pub"), false).is_err(),
            "unsigned"
        );
        assert_eq!(beside(&at("p.wasm")).unwrap(), "");
        sign(&at("p.wasm"), &at("old.key"), false, false).unwrap();
        verify(&at("p.wasm"), &public("old.pub"), false).unwrap();
        assert!(
            verify(&at("p.wasm"), &public("new.pub"), true).is_err(),
            "another key"
        );
        let typed = std::fs::read_to_string(at("old.pub")).unwrap().trim().to_owned();
        verify(&at("p.wasm"), &[typed], true).unwrap();

        sign(&at("p.wasm"), &at("new.key"), true, true).unwrap();
        verify(&at("p.wasm"), &public("old.pub"), false).unwrap();
        verify(&at("p.wasm"), &public("new.pub"), false).unwrap();
        sign(&at("p.wasm"), &at("new.key"), false, false).unwrap();
        assert!(
            verify(&at("p.wasm"), &public("old.pub"), false).is_err(),
            "replaced"
        );

        std::fs::write(at("p.wasm"), b"bytez").unwrap();
        assert!(
            verify(&at("p.wasm"), &public("new.pub"), false).is_err(),
            "other bytes"
        );
        let text = std::fs::read_to_string(at("p.wasm.sig")).unwrap();
        std::fs::write(at("p.wasm.sig"), &text[..text.len() - 9]).unwrap();
        assert!(beside(&at("p.wasm")).is_err(), "a cut file is told, not ignored");
    }
}
