//! The other side of [`Compilation::Child`]: a process that compiles one component and ends.
//!
//! ```text
//! stdin   seconds of processor time, bytes of address space (u64, little endian), the component until the end
//! stdout  b"C" or b"E", length (u64, little endian), compiled code or why there is none (UTF-8)
//! ```
//!
//! It bounds itself before it looks at the component. Whatever ends it early, the host sees a reply that is not whole.
//!
//! [`Compilation::Child`]: crate::Compilation::Child

use crate::engine;
use crate::limits::CompileBudget;
use rustix::process::{Resource, Rlimit, Signal};
use std::io::{self, Read, Write};

/// The argument with which the host starts itself as a worker.
pub(crate) const ARGUMENT: &str = "compile-worker";

/// Cranelift recurses deeply and overflowed the usual 2 MiB in the field; address space costs nothing until used.
pub(crate) const STACK_BYTES: usize = 16 << 20;

/// How much the worker steps back: nobody waits for a compilation as people wait for tokens.
const NICENESS: i32 = 10;

/// What a worker says in the end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Serialized code.
    Code(Vec<u8>),
    /// Why the component cannot be compiled.
    Refused(String),
}

impl Reply {
    fn write(&self, output: &mut impl Write) -> io::Result<()> {
        let (tag, payload) = match self {
            Self::Code(code) => (b"C", code.as_slice()),
            Self::Refused(why) => (b"E", why.as_bytes()),
        };
        output.write_all(tag)?;
        output.write_all(&(payload.len() as u64).to_le_bytes())?;
        output.write_all(payload)?;
        output.flush()
    }

    /// A whole reply of at most `most` bytes, or `None` when the worker ended before it was written.
    pub(crate) fn read(input: &mut impl Read, most: u64) -> Option<Self> {
        let (mut tag, mut length) = ([0], [0; 8]);
        input.read_exact(&mut tag).ok()?;
        input.read_exact(&mut length).ok()?;
        let length = u64::from_le_bytes(length);
        if length > most {
            return None;
        }
        let mut payload = Vec::new();
        input.take(length).read_to_end(&mut payload).ok()?;
        if payload.len() as u64 != length {
            return None;
        }
        match &tag {
            b"C" => Some(Self::Code(payload)),
            b"E" => Some(Self::Refused(String::from_utf8_lossy(&payload).into_owned())),
            _ => None,
        }
    }
}

/// What a worker is told before the component.
pub(crate) fn header(budget: CompileBudget) -> [u8; 16] {
    let mut header = [0; 16];
    header[..8].copy_from_slice(&budget.cpu_seconds.to_le_bytes());
    header[8..].copy_from_slice(&budget.address_space_bytes.to_le_bytes());
    header
}

fn read_header(input: &mut impl Read) -> io::Result<CompileBudget> {
    let mut number = [0; 8];
    input.read_exact(&mut number)?;
    let cpu_seconds = u64::from_le_bytes(number);
    input.read_exact(&mut number)?;
    Ok(CompileBudget {
        cpu_seconds,
        address_space_bytes: u64::from_le_bytes(number),
    })
}

/// Compiles the component on standard input and writes the reply to standard output. The whole of a worker's life: it
/// bounds this process for good, so nothing else can be done in it afterwards.
///
/// # Errors
/// The operating system's, when the pipes broke or a limit could not be set.
pub fn compile_worker() -> io::Result<()> {
    let mut input = io::stdin().lock();
    confine(read_header(&mut input)?)?;
    let mut component = Vec::new();
    input.read_to_end(&mut component)?;
    let compiling = std::thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(move || compile(&component))?;
    let reply = compiling
        .join()
        .unwrap_or_else(|_| Reply::Refused("the compiler panicked on it".into()));
    reply.write(&mut io::stdout().lock())
}

fn confine(budget: CompileBudget) -> io::Result<()> {
    let at_most = |resource, soft, hard| {
        rustix::process::setrlimit(
            resource,
            Rlimit {
                current: Some(soft),
                maximum: Some(hard),
            },
        )
    };
    at_most(Resource::Core, 0, 0)?;
    at_most(Resource::Fsize, 0, 0)?;
    // On top of what the program has already: allocators reserve a gigabyte that they never touch.
    let address_space = budget.address_space_bytes.saturating_add(address_space()?);
    at_most(Resource::As, address_space, address_space)?;
    // The first limit is a signal that tells why; the second, a second later, cannot be ignored.
    at_most(
        Resource::Cpu,
        budget.cpu_seconds,
        budget.cpu_seconds.saturating_add(1),
    )?;
    rustix::process::nice(NICENESS)?;
    // A host that is killed takes its workers along.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(())
}

/// Bytes of address space that this process has.
fn address_space() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let kib = line
        .and_then(|line| line.trim().strip_suffix(" kB"))
        .and_then(|n| n.parse().ok());
    Ok(kib.unwrap_or(0_u64).saturating_mul(1024))
}

fn compile(component: &[u8]) -> Reply {
    let compiled = engine::compile_only().and_then(|engine| engine.precompile_component(component));
    compiled.map_or_else(|e| Reply::Refused(format!("{e:#}")), Reply::Code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_whole_or_none() {
        for reply in [Reply::Code(b"native".to_vec()), Reply::Refused("invalid".into())] {
            let mut written = Vec::new();
            reply.write(&mut written).unwrap();
            for cut in 0..written.len() {
                assert_eq!(
                    Reply::read(&mut &written[..cut], 64),
                    None,
                    "cut after {cut} bytes"
                );
            }
            assert_eq!(Reply::read(&mut written.as_slice(), 64), Some(reply));
        }
    }

    #[test]
    fn a_reply_beyond_the_bound_is_none() {
        let mut written = Vec::new();
        Reply::Code(vec![0; 65]).write(&mut written).unwrap();
        assert_eq!(Reply::read(&mut written.as_slice(), 64), None);
    }

    #[test]
    fn the_header_says_the_budget() {
        let budget = CompileBudget {
            cpu_seconds: 5,
            address_space_bytes: 1 << 30,
        };
        assert_eq!(read_header(&mut header(budget).as_slice()).unwrap(), budget);
    }
}
