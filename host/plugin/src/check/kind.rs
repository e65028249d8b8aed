//! Tells what kind of file was handed in, by its first bytes.

use super::Remark;
use crate::artefact::is_sealed;
use crate::limits::Limits;
use wasmtime::Engine;

const BUILD_HELP: &str = "hand in the .wasm that `portolan policy build` leaves in a project; `portolan policy new --lang rust \
     --question routing my-policy` begins one";

const TEXT_HELP: &str = "hand in the .wasm that was made of it: `portolan policy build` makes it of a project; WebAssembly text \
     is assembled with wasm-tools parse";

const PACKED_HELP: &str = "unpack it, and hand in the .wasm inside";

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
            "make it a component: `portolan policy componentize policy.wasm -o policy.component.wasm`; `portolan policy \
             build` does so by itself",
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
        None => {
            let (what, help) = looks_like(bytes);
            let message = format!("the file is not a WebAssembly binary but {what}");
            Some(Remark::new("not-wasm", message, help))
        }
    }
}

/// The remark about a component whose end is missing.
pub(crate) fn truncated(bytes: usize) -> Remark {
    Remark::new(
        "truncated",
        format!("the component ends after {bytes} bytes in the middle of a section"),
        "copy the file again; the upload or the build was cut short, or something was appended",
    )
}

/// What a file seems to be, and what to do about it.
fn looks_like(bytes: &[u8]) -> (&'static str, &'static str) {
    const KNOWN: [(&[u8], &str, &str); 7] = [
        (b"\x7fELF", "an ELF executable for a native machine", BUILD_HELP),
        (b"PK\x03\x04", "a zip archive", PACKED_HELP),
        (b"\x1f\x8b", "gzip-compressed data", PACKED_HELP),
        (b"\x28\xb5\x2f\xfd", "zstd-compressed data", PACKED_HELP),
        (b"MZ", "a Windows executable", BUILD_HELP),
        (b"\xcf\xfa\xed\xfe", "a Mach-O executable", BUILD_HELP),
        (b"BC\xc0\xde", "LLVM bitcode", BUILD_HELP),
    ];
    if let Some((_, what, help)) = KNOWN.iter().find(|(magic, ..)| bytes.starts_with(magic)) {
        return (what, help);
    }
    // A text file shows itself in its first kilobyte; a character cut in two at its end does no harm.
    let head = &bytes[..bytes.len().min(1024)];
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(e) if e.error_len().is_none() => std::str::from_utf8(&head[..e.valid_up_to()]).unwrap_or(""),
        Err(_) => return ("unknown binary data", BUILD_HELP),
    };
    let text = text.trim_start().to_ascii_lowercase();
    if text.starts_with("<!doctype html") || text.starts_with("<html") {
        (
            "an HTML page",
            "look at the page: it may say why a download failed",
        )
    } else if text.starts_with("(module") || text.starts_with("(component") {
        ("WebAssembly text", TEXT_HELP)
    } else if text.contains('\0') {
        ("unknown binary data", BUILD_HELP)
    } else {
        ("text", TEXT_HELP)
    }
}
