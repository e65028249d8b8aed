//! `docs/tutorial-first-policy.md` followed to the letter: its shell blocks run in order in one shell, and what it says
//! they print is what they print.
//!
//! | block | what becomes of it |
//! |---|---|
//! | `sh` | runs |
//! | `sh setup` | is done already: the binary is built, the model is there |
//! | `text` | expected of the block before: each line in this order, others between them; `…` stands for anything |
//!
//! One thing differs from what a reader does: the host listens on a port of its own.

use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where the tutorial's host listens.
const ADDRESS: &str = "127.0.0.1:8080";

/// A shell block with what it is said to print.
#[derive(Debug)]
struct Step {
    line: usize,
    commands: String,
    expected: Vec<String>,
}

fn repository() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    folder.canonicalize().expect("the repository is there")
}

fn steps(tutorial: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut fence: Option<&str> = None;
    for (number, line) in (1..).zip(tutorial.lines()) {
        match (fence, line.strip_prefix("```")) {
            (None, Some(word)) => {
                fence = Some(word);
                if word == "sh" {
                    steps.push(Step {
                        line: number,
                        commands: String::new(),
                        expected: Vec::new(),
                    });
                } else {
                    assert!(
                        ["text", "sh setup"].contains(&word),
                        "line {number}: a block of {word:?}"
                    );
                }
            }
            (Some(_), Some(_)) => fence = None,
            (Some("sh"), None) => {
                let step = steps.last_mut().expect("a block was begun");
                writeln!(step.commands, "{line}").expect("a string takes all");
            }
            (Some("text"), None) => {
                let step = steps.last_mut().expect("output follows a shell block");
                step.expected.push(line.to_owned());
            }
            _ => {}
        }
    }
    steps
}

/// The binary that was built with this test.
fn portolan() -> PathBuf {
    let test = std::env::current_exe().expect("this test has a path");
    let binary = test.ancestors().nth(2).expect("it lies in deps").join("portolan");
    assert!(
        binary.is_file(),
        "{} is missing; run: cargo build --bin portolan",
        binary.display()
    );
    binary
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("it is bound").port()
}

/// The part of the repository that the tutorial reads, with `address` in place of its own.
fn checkout(folder: &Path, address: &str) -> PathBuf {
    let example = "examples/02-two-sites/portolan.yaml";
    let text = std::fs::read_to_string(repository().join(example)).expect("the example is there");
    assert!(text.contains(ADDRESS), "{example} listens elsewhere");
    let checkout = folder.join("checkout");
    let copy = checkout.join(example);
    std::fs::create_dir_all(copy.parent().expect("it has a folder")).expect("a folder");
    std::fs::write(copy, text.replace(ADDRESS, address)).expect("a copy");
    checkout
}

/// All blocks in one shell, with a mark before each.
fn script(steps: &[Step], folder: &Path) -> String {
    let address = format!("127.0.0.1:{}", free_port());
    let models =
        std::env::var("PORTOLAN_MODEL_DIR").map_or_else(|_| repository().join(".models"), PathBuf::from);
    let mut script = format!(
        "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\nset -eu\nrepository={}\nmodels={}\nPATH={}:$PATH\n",
        checkout(folder, &address).display(),
        models.display(),
        portolan().parent().expect("a file has a folder").display(),
    );
    for (index, step) in steps.iter().enumerate() {
        let commands = step.commands.replace(ADDRESS, &address);
        write!(script, "echo '{}'\n{commands}", mark(index)).expect("a string takes all");
    }
    script
}

fn mark(index: usize) -> String {
    format!("=== block {index}")
}

/// Whether `line` is what was expected, where `…` stands for anything.
fn fits(expected: &str, line: &str) -> bool {
    let Some((before, after)) = expected.split_once('…') else {
        return expected == line;
    };
    line.strip_prefix(before).is_some_and(|rest| {
        let mut ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
        ends.any(|at| fits(after, &rest[at..]))
    })
}

#[test]
fn an_ellipsis_stands_for_anything() {
    assert!(fits("a … c", "a b c") && fits("…", "") && fits("a…", "abc") && fits("abc", "abc"));
    assert!(!fits("a … c", "a b d") && !fits("abc", "abcd") && !fits("a … c", "a b c d"));
}

#[test]
fn the_tutorial_is_followed_to_the_letter() {
    let text =
        std::fs::read_to_string(repository().join("docs/tutorial-first-policy.md")).expect("it is there");
    let steps = steps(&text);
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let output = std::fs::File::create(&log).expect("a log");
    let status = Command::new("bash")
        .args(["-c", &script(&steps, folder.path())])
        .current_dir(folder.path())
        .env("TMPDIR", folder.path())
        .env_remove("PORTOLAN_SERVER")
        .env_remove("PORTOLAN_KEY")
        .stdin(Stdio::null())
        .stderr(output.try_clone().expect("a second handle"))
        .stdout(output)
        .status()
        .expect("bash runs");
    let log = std::fs::read_to_string(&log).expect("the log");
    assert!(status.success(), "a block failed:\n{log}");
    let mut missed = String::new();
    for (index, step) in steps.iter().enumerate() {
        let (_, printed) = log.split_once(&mark(index)).expect("every block ran");
        let end = printed.find("=== block ").unwrap_or(printed.len());
        let printed = &printed[..end];
        let mut lines = printed.lines();
        for expected in &step.expected {
            if !lines.any(|line| fits(expected, line.trim_end())) {
                writeln!(
                    missed,
                    "the block at line {} of the tutorial did not print {expected:?} (in this order), but:{printed}",
                    step.line
                )
                .expect("a string takes all");
                break;
            }
        }
    }
    assert!(missed.is_empty(), "{missed}");
    let said: usize = steps.iter().map(|step| step.expected.len()).sum();
    assert!(
        steps.len() > 12 && said > 12,
        "{} blocks, {said} lines",
        steps.len()
    );
}
