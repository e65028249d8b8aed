//! What can be typed, and who does it.

mod approval;
mod audit;
mod authoring;
mod bench;
mod compile_worker;
mod config;
mod demo;
mod demo_fleet;
mod dr;
mod fleet;
mod generate;
mod instance;
mod invalidate;
mod kv;
mod logging;
mod modelled;
mod nats;
#[cfg(feature = "nixl")]
mod nixl_worker;
mod output;
mod plan;
mod policy;
mod request;
mod residency;
mod rollout;
mod serve;
mod signing;
mod simulate;
mod site;
mod times;
mod tls;
mod usage;

use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

pub use approval::ApprovalCommand;
pub use audit::AuditArgs;
pub use authoring::NewArgs;
pub use bench::{BenchCommand, Compress, TransportArgs};
pub use config::{ChangeArgs, ConfigCommand};
pub use dr::{DrArgs, DrCommand, DrillArgs};
pub use instance::InstanceCommand;
pub use invalidate::InvalidateCommand;
pub use kv::{EstimateArgs, KvCommand, QualityArgs};
pub use modelled::ModelledArgs;
pub use output::Failure;
pub use plan::{PlanArgs, PlanExample};
pub use policy::{BenchArgs, CallArgs, CheckArgs, LogArgs, PullArgs, PushArgs, ReplayArgs, TestArgs};
pub use request::ListArgs;
pub use residency::ResidencyCommand;
pub use rollout::RolloutCommand;
pub use signing::SigningCommand;
pub use simulate::{Example, SimulateArgs};
pub use site::{SiteArgs, SiteCommand};

/// The programmable data and control plane for LLM inference across datacenters.
#[derive(Debug, Parser)]
#[command(name = "portolan", version, arg_required_else_help = true)]
pub struct Cli {
    /// Print JSON instead of text for people.
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the sites of a configuration file.
    Serve {
        /// The configuration file (YAML).
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// What is particular to this process of all that share the file.
        #[command(flatten)]
        here: serve::Here,
    },
    /// Run two sites and show what Portolan does, step by step.
    Demo(DemoArgs),
    /// Run three sites as processes of their own, with a NATS server, and show what they do for each other.
    DemoFleet(DemoFleetArgs),
    /// Say what a NATS server has to allow.
    #[command(subcommand)]
    Nats(NatsCommand),
    /// Compile one component: what a running host starts for itself.
    #[command(hide = true)]
    CompileWorker,
    /// Use NIXL: what a running host starts for itself.
    #[cfg(feature = "nixl")]
    #[command(hide = true)]
    NixlWorker(nixl_worker::NixlWorkerArgs),
    /// Check, upload and activate policies.
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Back a model service up, check the backup, and drill bringing it back.
    #[command(subcommand)]
    Dr(DrCommand),
    /// Look at a configuration file, and change that of a running host.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Look at what tenants use.
    #[command(subcommand)]
    Tenant(TenantCommand),
    /// Show sites, instances and links as a site knows them.
    Fleet {
        /// The running host.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Take an instance out of service, and back.
    #[command(subcommand)]
    Instance(InstanceCommand),
    /// Take a whole site out of service, and back.
    #[command(subcommand)]
    Site(SiteCommand),
    /// Look at requests that were served.
    #[command(subcommand)]
    Request(RequestCommand),
    /// Ask which sites may see the data of a request.
    #[command(subcommand)]
    Residency(ResidencyCommand),
    /// Measure this program on this machine.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Play traffic through the production decisions on a virtual clock.
    Simulate(SimulateArgs),
    /// Look at KV.
    #[command(subcommand)]
    Kv(KvCommand),
    /// Have cached KV used no more, at any site.
    #[command(subcommand)]
    Invalidate(InvalidateCommand),
    /// Say which threshold, split and bandwidth serve most.
    Plan(PlanArgs),
    /// Make certificates for KV between sites.
    #[command(subcommand)]
    Tls(TlsCommand),
    /// Run an engine by itself.
    #[command(subcommand)]
    Engine(EngineCommand),
}

/// Options of `demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Exit after the tour; non-zero if anything in it was not as told.
    #[arg(long)]
    pub once: bool,
    /// Where the first site listens.
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDR")]
    pub listen: SocketAddr,
    /// The demo model.
    #[arg(
        long,
        env = "PORTOLAN_DEMO_MODEL",
        default_value = ".models/SmolLM2-135M-Instruct.Q4_1.gguf",
        value_name = "FILE"
    )]
    pub model: PathBuf,
    /// Folder of the shipped policy components.
    #[arg(
        long,
        env = "PORTOLAN_PLUGINS",
        default_value = "plugins/dist",
        value_name = "DIR"
    )]
    pub plugins: PathBuf,
}

/// Options of `demo-fleet`.
#[derive(Debug, Args)]
pub struct DemoFleetArgs {
    /// Three servers that keep what must survive together, instead of one.
    #[arg(long)]
    pub cluster: bool,
    /// Exit after the tour; non-zero if anything in it was not as told.
    #[arg(long)]
    pub once: bool,
    /// The demo model.
    #[arg(
        long,
        env = "PORTOLAN_DEMO_MODEL",
        default_value = ".models/SmolLM2-135M-Instruct.Q4_1.gguf",
        value_name = "FILE"
    )]
    pub model: PathBuf,
}

/// `nats` commands.
#[derive(Debug, Subcommand)]
pub enum NatsCommand {
    /// Print the users of a server's configuration: each site, with the subjects that it publishes and reads.
    Permissions {
        /// The configuration file (YAML).
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
}

/// How to reach a running host.
#[derive(Clone, Debug, Args)]
pub struct ServerArgs {
    /// Address of a site.
    #[arg(
        long,
        env = "PORTOLAN_SERVER",
        default_value = "http://127.0.0.1:8080",
        value_name = "URL"
    )]
    pub server: String,
    /// Key to show.
    #[arg(
        long,
        env = "PORTOLAN_KEY",
        default_value = "",
        hide_env_values = true,
        hide_default_value = true
    )]
    pub key: String,
}

/// `policy` commands.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Begin a project in one of four languages.
    New(NewArgs),
    /// Build a project to a component and check it.
    Build {
        /// Folder of the project.
        #[arg(default_value = ".", value_name = "DIR")]
        dir: PathBuf,
    },
    /// Say whether a component can be used, without a server.
    Check(CheckArgs),
    /// Ask a component once and print its answer.
    Call(CallArgs),
    /// Try a component on a table of cases.
    Test(TestArgs),
    /// Decide recorded requests again and say what changes.
    Replay(Box<ReplayArgs>),
    /// Measure what a component costs, beside the built-in policy.
    Bench(BenchArgs),
    /// Make a component of a core module that a guest toolchain left.
    Componentize {
        /// The core module.
        file: PathBuf,
        /// Where the component goes.
        #[arg(long, short, value_name = "FILE")]
        output: PathBuf,
    },
    /// Stub what a foreign component imports from WASI, so that it can be uploaded.
    Fix {
        /// The component.
        file: PathBuf,
        /// Where the fixed component goes.
        #[arg(long, short, value_name = "FILE")]
        output: PathBuf,
    },
    /// Upload a component and make it active, or put it into a registry. A signature beside it, FILE.sig, goes along.
    Push(PushArgs),
    /// Get a component from a registry and check it.
    Pull(PullArgs),
    /// List stored versions and what is active.
    List {
        /// Whose; `_platform` for the platform's.
        #[arg(long)]
        tenant: String,
        /// The running host.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Say what answered a question when, and what the host took out of force by itself.
    History {
        /// Where.
        #[command(flatten)]
        slot: SlotArgs,
        /// The running host.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Print what a tenant's policies wrote with `host.log`, the latest lines of the host that is asked.
    Log(LogArgs),
    /// Make a stored version active.
    Activate {
        /// Where it goes.
        #[command(flatten)]
        slot: SlotArgs,
        /// SHA-256 of the version, or its unique beginning.
        version: String,
        /// Text for its `configure`, or @FILE; that of its last binding, or the one in force, when left out.
        #[arg(long, value_name = "TEXT|@FILE")]
        config: Option<String>,
        /// fresh: an instance for each call; warm: kept from call to call; by-class: fresh when compact. As in its last
        /// binding when left out.
        #[arg(long, value_name = "HOW")]
        reuse: Option<portolan_ports::Reuse>,
        /// Why, for the audit log.
        #[arg(long, default_value = "")]
        reason: String,
        /// The running host.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Remove the active version: the platform's policy or the built-in one answers.
    Unbind {
        /// Where.
        #[command(flatten)]
        slot: SlotArgs,
        /// Why, for the audit log.
        #[arg(long, default_value = "")]
        reason: String,
        /// The running host.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Forget a stored version that is neither active nor on trial.
    Remove {
        /// Where.
        #[command(flatten)]
        slot: SlotArgs,
        /// SHA-256 of the version, or its unique beginning.
        version: String,
        /// Why, for the audit log.
        #[arg(long, default_value = "")]
        reason: String,
        /// The running host.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Say who changed what, newest first. For the operator; a tenant has `history`.
    Audit(AuditArgs),
    /// Try, promote, roll back and hold versions.
    #[command(flatten)]
    Rollout(RolloutCommand),
    /// Draw keys, sign, verify.
    #[command(flatten)]
    Signing(SigningCommand),
    /// See and decide on what waits for a second operator.
    #[command(flatten)]
    Approval(ApprovalCommand),
}

/// Whose answer to which question.
#[derive(Clone, Debug, Args)]
pub struct SlotArgs {
    /// Whose; `_platform` for the platform's.
    #[arg(long)]
    pub tenant: String,
    /// residency, cost, routing or invalidation.
    #[arg(long)]
    pub question: portolan_policy::QuestionKind,
}

/// `tenant` commands.
#[derive(Debug, Subcommand)]
pub enum TenantCommand {
    /// Say what a tenant used of what it may.
    Usage {
        /// Which; `_platform` for the platform. All that the key may see when left out.
        tenant: Option<String>,
        /// The running host.
        #[command(flatten)]
        server: ServerArgs,
    },
}

/// `request` commands.
#[derive(Debug, Subcommand)]
pub enum RequestCommand {
    /// List the newest requests.
    List(ListArgs),
    /// Say why a request went where it went.
    Show {
        /// The request's id.
        id: String,
        /// The running host.
        #[command(flatten)]
        server: ServerArgs,
    },
}

/// `tls` commands.
#[derive(Debug, Subcommand)]
pub enum TlsCommand {
    /// Make an authority and a certificate for each site; with an authority in place, add sites to it.
    Init {
        /// The sites, by name.
        #[arg(required = true, value_name = "SITE")]
        sites: Vec<portolan_base::SiteName>,
        /// Where the files go.
        #[arg(long, default_value = "tls", value_name = "DIR")]
        dir: PathBuf,
    },
}

/// `engine` commands.
#[derive(Debug, Subcommand)]
pub enum EngineCommand {
    /// Generate greedily with the native engine.
    Generate(GenerateArgs),
    /// Serve what takes the time of a real engine and computes nothing, for load tests.
    Modelled(ModelledArgs),
}

/// Options of `engine generate`.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// A Hugging Face folder or a `.gguf` file.
    #[arg(long, value_name = "PATH")]
    pub model: PathBuf,
    /// The prompt as text.
    #[arg(long, required_unless_present = "token_ids", conflicts_with = "token_ids")]
    pub prompt: Option<String>,
    /// The prompt as token ids.
    #[arg(long, value_delimiter = ',', value_name = "1,2,3")]
    pub token_ids: Option<Vec<u32>>,
    /// Most tokens to generate.
    #[arg(long, default_value_t = 64)]
    pub max_tokens: u32,
    /// Prefill in one engine instance and decode in another, joined by the transport.
    #[arg(long)]
    pub split: bool,
    /// Print the logits of the last prompt position.
    #[arg(long)]
    pub logits: bool,
}

impl Cli {
    /// Reads what was typed. What cannot be understood is said as every failure is, with the exit status of such; help and
    /// version are printed.
    ///
    /// # Errors
    /// The exit status, when there is nothing to do.
    pub fn typed(words: impl IntoIterator<Item = OsString>) -> Result<Self, ExitCode> {
        let words: Vec<OsString> = words.into_iter().collect();
        let error = match Self::try_parse_from(&words) {
            Ok(cli) => return Ok(cli),
            Err(error) => error,
        };
        let status = ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1));
        match usage_failure(&error, &words) {
            Some(failure) => failure.print(),
            // Where it cannot be printed nobody reads it.
            None => drop(error.print()),
        }
        Err(status)
    }
}

/// What was wrong with what was typed, where that is to be said as JSON; none: in clap's own form.
fn usage_failure(error: &clap::Error, words: &[OsString]) -> Option<Failure> {
    let asked = words
        .iter()
        .take_while(|word| *word != "--")
        .any(|word| word == "--json");
    if !asked || !error.use_stderr() {
        return None;
    }
    let text = error.render().to_string();
    let text = text.trim().strip_prefix("error: ").unwrap_or(text.trim());
    Some(Failure::new(text).as_json(true))
}

/// Does what was typed.
pub fn run(cli: Cli) -> Result<(), Failure> {
    let json = cli.json;
    match cli.command {
        Command::Serve { config, here } => serve::run(&config, &here, json),
        Command::Demo(args) => demo::run(&args),
        Command::DemoFleet(args) => demo_fleet::run(&args),
        Command::Nats(NatsCommand::Permissions { config }) => nats::permissions(&config, json),
        Command::CompileWorker => compile_worker::run(),
        #[cfg(feature = "nixl")]
        Command::NixlWorker(args) => nixl_worker::run(&args),
        Command::Dr(command) => dr::run(command, json),
        Command::Config(command) => config::run(command, json),
        Command::Policy(command) => policy::run(command, json),
        Command::Tenant(command) => usage::tenant(command, json),
        Command::Fleet { server } => fleet::run(&server, json),
        Command::Instance(command) => instance::run(&command, json),
        Command::Site(command) => site::run(&command, json),
        Command::Request(RequestCommand::List(args)) => request::list(&args, json),
        Command::Request(RequestCommand::Show { id, server }) => request::show(&id, &server, json),
        Command::Residency(command) => residency::run(&command, json),
        Command::Bench(command) => bench::run(&command, json),
        Command::Simulate(args) => simulate::run(&args, json),
        Command::Kv(command) => kv::run(command, json),
        Command::Invalidate(command) => invalidate::run(&command, json),
        Command::Plan(args) => plan::run(&args, json),
        Command::Tls(TlsCommand::Init { sites, dir }) => tls::init(&sites, &dir, json),
        Command::Engine(EngineCommand::Generate(args)) => generate::run(args, json),
        Command::Engine(EngineCommand::Modelled(args)) => modelled::run(args),
    }
}

impl Failure {
    /// Prints the failure and gives the exit status.
    pub fn report(&self) -> ExitCode {
        self.print();
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_understood_is_said_as_json_where_that_was_asked_for() {
        let said = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let error = Cli::try_parse_from(&words).unwrap_err();
            usage_failure(&error, &words).map(|failure| format!("{failure:?}"))
        };
        let json = said("portolan kv estimate --json --tokens many").unwrap();
        assert!(json.contains("invalid value 'many' for '--tokens"), "{json}");
        assert!(json.contains("json: true") && !json.contains("error: "), "{json}");
        assert_eq!(said("portolan kv estimate --tokens many"), None);
        assert_eq!(said("portolan kv --json --help"), None, "help is no failure");
    }
}
