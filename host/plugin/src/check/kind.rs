//! Tells what kind of file was handed in, by its first bytes.

use super::Remark;
use crate::artefact::is_sealed;
use crate::limits::Limits;
use wasmtime::Engine;

const BUILD_HELP: &str = "start from examples/01-routing-policy-rust: build for the target wasm32-unknown-unknown, then \
     make the core module a component: `portolan policy componentize policy.wasm -o policy.component.wasm`";

/// The remark about a file that is no component, by its size and first bytes.
pub(crate) fn refuse(bytes: &[u8], limits: &Limits) -> Option<Remark> {
    if bytes.is_empty() {
        return Some(Remark::new("empty", "the file is empty", BUILD_HELP));
    }
    if bytes.len() > limits.component_bytes {
        return Some(Remark::new(
            "too-large",
            format!(
                "the component has {} bytes, at most {} are taken",
                bytes.len(),
                limits.component_bytes
            ),
            "strip debug sections (wasm-tools strip), and leave out what the policy does not use",
        ));
    }
    if is_sealed(bytes) || Engine::detect_precompiled(bytes).is_some() {
        return Some(Remark::new(
            "precompiled",
            "the file is a compiled artefact, which is native code and never taken from outside",
            "hand in the component (.wasm) that it was compiled from",
        ));
    }
    match bytes.strip_prefix(b"\0asm") {
        Some([0x0d, 0, 1, 0, ..]) => None,
        Some([1, 0, 0, 0, ..]) => Some(Remark::new(
            "core-module",
            "the file is a core WebAssembly module, not a component",
            "make it a component: `portolan policy componentize policy.wasm -o policy.component.wasm`",
        )),
        Some([a, b, c, d, ..]) => Some(Remark::new(
            "wasm-version",
            format!(
                "the file is WebAssembly of version {a:02x} {b:02x} {c:02x} {d:02x}; components are 0d 00 01 00"
            ),
            "build it with present-day component tools",
        )),
        Some(_) => Some(truncated(bytes.len())),
        None if b"\0asm".starts_with(bytes) => Some(truncated(bytes.len())),
        None => Some(Remark::new(
            "not-wasm",
            format!("the file is not WebAssembly but {}", looks_like(bytes)),
            BUILD_HELP,
        )),
    }
}

/// The remark about a component whose end is missing.
pub(crate) fn truncated(bytes: usize) -> Remark {
    Remark::new(
        "truncated",
        format!("the component ends after {bytes} bytes in the middle of a section"),
        "copy the file again; the upload or the build was cut short",
    )
}

fn looks_like(bytes: &[u8]) -> &'static str {
    const KNOWN: [(&[u8], &str); 7] = [
        (b"\x7fELF", "an ELF executable for a native machine"),
        (b"PK\x03\x04", "a zip archive"),
        (b"\x1f\x8b", "gzip-compressed data"),
        (b"\x28\xb5\x2f\xfd", "zstd-compressed data"),
        (b"MZ", "a Windows executable"),
        (b"\xcf\xfa\xed\xfe", "a Mach-O executable"),
        (b"BC\xc0\xde", "LLVM bitcode"),
    ];
    if let Some((_, name)) = KNOWN.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        return name;
    }
    // A text file shows itself in its first kilobyte; a character cut in two at its end does no harm.
    let head = &bytes[..bytes.len().min(1024)];
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(e) if e.error_len().is_none() => std::str::from_utf8(&head[..e.valid_up_to()]).unwrap_or(""),
        Err(_) => return "unknown binary data",
    };
    let text = text.trim_start().to_ascii_lowercase();
    if text.starts_with("<!doctype html") || text.starts_with("<html") {
        "an HTML page (an error page of a download, perhaps)"
    } else if text.starts_with("(module") || text.starts_with("(component") {
        "WebAssembly text (assemble it with wasm-tools parse)"
    } else if text.contains('\0') {
        "unknown binary data"
    } else {
        "text"
    }
}
