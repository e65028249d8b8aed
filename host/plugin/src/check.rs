//! Says whether a component can be a policy, and if not, what to do about it. Cheap checks come first.

pub(crate) mod kind;
pub(crate) mod probe;
pub(crate) mod structure;

use crate::guest::SetupFault;
use portolan_policy::{PolicyFault, QuestionKind};
use portolan_ports::{Finding, PolicyRejection, PolicyReport, Severity};
use sha2::{Digest, Sha256};

/// SHA-256 of a component, hexadecimal: its name everywhere.
pub(crate) fn sha256(component: &[u8]) -> String {
    hex::encode(Sha256::digest(component))
}

/// Findings so far.
pub(crate) struct Report(PolicyReport);

/// A finding before its severity is known.
pub(crate) struct Remark {
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) help: String,
}

impl Remark {
    pub(crate) fn new(code: &'static str, message: impl Into<String>, help: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            help: help.into(),
        }
    }
}

impl Report {
    pub(crate) fn new(component: &[u8]) -> Self {
        Self(PolicyReport {
            ok: true,
            question: None,
            findings: Vec::new(),
            sha256: sha256(component),
            bytes: component.len() as u64,
        })
    }

    pub(crate) fn error(&mut self, remark: Remark) {
        self.0.ok = false;
        self.add(Severity::Error, remark);
    }

    pub(crate) fn warning(&mut self, remark: Remark) {
        self.add(Severity::Warning, remark);
    }

    pub(crate) fn note(&mut self, code: &'static str, message: String) {
        self.add(Severity::Note, Remark::new(code, message, ""));
    }

    fn add(&mut self, severity: Severity, remark: Remark) {
        let Remark { code, message, help } = remark;
        self.0.findings.push(Finding {
            code: code.into(),
            severity,
            message,
            help,
        });
    }

    pub(crate) fn answers(&mut self, question: QuestionKind) {
        self.0.question = Some(question);
    }

    pub(crate) fn ok(&self) -> bool {
        self.0.ok
    }

    pub(crate) fn sha256(&self) -> &str {
        &self.0.sha256
    }

    pub(crate) fn done(self) -> PolicyReport {
        self.0
    }

    /// The report of a component that cannot be used, ending with why.
    pub(crate) fn reject(mut self, remark: Remark) -> PolicyRejection {
        self.error(remark);
        PolicyRejection(self.0)
    }
}

/// What to say about a component of which no instance could be made.
pub(crate) fn setup_remark(fault: SetupFault) -> Remark {
    match fault {
        SetupFault::Refused(why) => Remark::new(
            "configuration-refused",
            format!("the policy refused its configuration: {why}"),
            "correct the binding's configuration; its form is the policy's own",
        ),
        SetupFault::Configure(fault) => Remark::new(
            "configure-failed",
            format!("configure did not return: {fault}"),
            "make configure return an error instead of trapping, and keep it short: it runs once for each instance",
        ),
        SetupFault::Start(PolicyFault::OutOfMemory(most)) => Remark::new(
            "too-much-memory",
            format!("the component needs more than the {most} bytes of memory an instance may have"),
            "lower the initial memory and the number of tables' elements",
        ),
        fault @ (SetupFault::Start(_) | SetupFault::NotHere) => Remark::new(
            "cannot-start",
            format!("no instance could be started: {}", fault.into_fault()),
            "start functions and static initialisers must be short and must not trap",
        ),
    }
}
