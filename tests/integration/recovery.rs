//! Backups while things break: the real binary is killed at any point of a backup, and its disk is full.

use portolan::config::Config;
use portolan::host::Host;
use portolan_tests::oracle_folder;
use portolan_tests::processes::binary;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use tempfile::TempDir;

/// Files that a backup has to bring, beside the model: so many places to be killed at.
const FILES: usize = 6;
const FILE_BYTES: usize = 512 << 10;
/// Backups that are killed.
const KILLS: u32 = 10;

/// A service of one small model, with a store that a host has founded.
struct Service(TempDir);

impl Service {
    fn found() -> Self {
        let service = Self(tempfile::tempdir().unwrap());
        let model = oracle_folder("tiny-qwen3");
        fs::create_dir(service.path("tiny")).unwrap();
        for file in [
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
        ] {
            fs::copy(model.join(file), service.path("tiny").join(file)).unwrap();
        }
        let deployed: Vec<String> = (0..FILES).map(|n| format!("bulk-{n}")).collect();
        let text = format!(
            "data_dir: data\noperator_keys: [op]\nmodels: [{{name: tiny, path: tiny}}]\n\
             sites: [{{name: paris, jurisdiction: eu, listen: '127.0.0.1:0', instances: []}}]\n\
             recovery: {{deployment: [{}], dependency_locks: []}}\n",
            deployed.join(", ")
        );
        fs::write(service.path("portolan.yaml"), text).unwrap();
        service.fill(0);
        let mut config = Config::read(&service.path("portolan.yaml")).unwrap();
        config.models.clear();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let host = runtime.block_on(Host::start(config)).unwrap();
        runtime.block_on(host.stop());
        service
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    /// Has the files hold what they held in a round, or something new.
    fn fill(&self, round: u32) {
        for n in 0..FILES {
            let mut bytes = vec![n as u8; FILE_BYTES];
            bytes[..4].copy_from_slice(&round.to_le_bytes());
            fs::write(self.path(&format!("bulk-{n}")), bytes).unwrap();
        }
    }

    fn command(&self, verb: &str, target: &Path) -> Command {
        let mut command = Command::new(binary());
        command
            .args(["--json", "dr", verb, "--config"])
            .arg(self.path("portolan.yaml"))
            .arg("--target")
            .arg(target)
            .stdin(Stdio::null());
        command
    }

    fn begin(&self, target: &Path) -> Child {
        let mut command = self.command("backup", target);
        command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Whether it went well, and what was said.
    fn ends(&self, verb: &str, target: &Path) -> (bool, String) {
        let done = self.command(verb, target).output().unwrap();
        let said = [done.stdout, done.stderr].concat();
        (done.status.success(), String::from_utf8_lossy(&said).into_owned())
    }

    fn backs_up(&self, target: &Path) {
        let (ok, said) = self.ends("backup", target);
        assert!(ok, "{said}");
    }

    /// Whether the latest backup is the service as it is; it can be looked at in any case.
    fn verifies(&self, target: &Path) -> bool {
        let (ok, said) = self.ends("verify", target);
        let verdict: Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}"));
        assert_eq!(verdict["ok"], ok, "{said}");
        ok
    }
}

fn backups(target: &Path) -> usize {
    let listed = fs::read_dir(target.join("backups")).unwrap();
    listed
        .filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            name.to_string_lossy().ends_with(".json")
        })
        .count()
}

#[test]
fn a_backup_that_is_killed_leaves_the_one_before_and_no_half_one() {
    let (service, place) = (Service::found(), tempfile::tempdir().unwrap());
    let target = place.path();
    service.backs_up(target);
    service.fill(1);
    let began = Instant::now();
    service.backs_up(target);
    let takes = began.elapsed();
    let (mut whole, mut cut) = (1, 0);
    for round in 2..2 + KILLS {
        service.fill(round);
        let before = backups(target);
        let mut child = service.begin(target);
        // From its first steps to a moment after it would have ended.
        std::thread::sleep(takes * 3 * (round - 1) / (2 * KILLS));
        drop(child.kill());
        drop(child.wait());
        if backups(target) > before {
            assert!(
                service.verifies(target),
                "round {round}: it is there, so it is whole"
            );
            whole = round;
            continue;
        }
        cut += 1;
        assert!(!service.verifies(target), "round {round}: nothing of it counts");
        service.fill(whole);
        assert!(
            service.verifies(target),
            "round {round}: the one before is as good as it was"
        );
    }
    println!("{cut} of {KILLS} backups were cut; one takes {takes:.1?}");
    assert!(cut > 0, "none was cut");
    service.fill(2 + KILLS);
    service.backs_up(target);
    assert!(service.verifies(target));
    let (ok, said) = service.ends("drill", target);
    assert!(ok, "{said}");
}

/// A file system in memory of so many KiB; taken away with it.
struct Disk<'a>(&'a Path);

impl<'a> Disk<'a> {
    /// None, said aloud, where this user may not mount.
    #[expect(clippy::print_stderr, reason = "what is skipped in silence counts as passed")]
    fn at(folder: &'a Path, kib: usize) -> Option<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={kib}k"), "tmpfs"]);
        let mounted = mount.arg(folder).stderr(Stdio::null()).status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Self(folder));
        }
        eprintln!("SKIPPED: a full disk (no right to mount one)");
        None
    }

    fn grow(&self, kib: usize) {
        let mut mount = Command::new("mount");
        mount.args(["-o", &format!("remount,size={kib}k")]);
        assert!(mount.arg(self.0).status().unwrap().success());
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(self.0).status());
    }
}

#[test]
fn a_disk_that_is_full_is_said_and_leaves_the_backup_before_it() {
    let (service, place) = (Service::found(), tempfile::tempdir().unwrap());
    let folder = place.path().join("disk");
    fs::create_dir(&folder).unwrap();
    let of = |path: &Path| -> usize {
        let files = fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
        files.map(|entry| entry.metadata().unwrap().len() as usize).sum()
    };
    let all = of(&service.path("tiny")) + FILES * FILE_BYTES;
    // One backup and half of what the next one brings anew.
    let Some(disk) = Disk::at(&folder, (all + FILES * FILE_BYTES / 2) / 1024 + 512) else {
        return;
    };
    service.backs_up(&folder);
    service.fill(1);
    let (ok, said) = service.ends("backup", &folder);
    assert!(!ok && said.contains("the disk is full"), "{said}");
    assert_eq!(backups(&folder), 1);
    let halves = fs::read_dir(folder.join("parts")).unwrap();
    let half = halves
        .map(|entry| entry.unwrap().file_name())
        .find(|name| name.to_string_lossy().ends_with(".writing"));
    assert_eq!(half, None, "half of a part takes no room");
    service.fill(0);
    assert!(service.verifies(&folder), "the one before is as good as it was");

    service.fill(1);
    disk.grow(2 * all / 1024 + 8192);
    service.backs_up(&folder);
    assert!(service.verifies(&folder), "it went on where it was");
}
