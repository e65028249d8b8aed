//! What a component may use, and why these numbers.

use serde::{Deserialize, Serialize};

/// Fuel for one call: it grows with the rows the policy has to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FuelBudget {
    /// For a call without rows.
    pub base: u64,
    /// For each row.
    pub per_row: u64,
    /// At most this, however many rows.
    pub ceiling: u64,
}

impl FuelBudget {
    /// The budget of a call over `rows` rows.
    pub fn for_rows(&self, rows: usize) -> u64 {
        self.wanted(rows).min(self.ceiling)
    }

    /// Whether the rows would earn more than the ceiling allows.
    pub fn is_capped(&self, rows: usize) -> bool {
        self.wanted(rows) > self.ceiling
    }

    fn wanted(&self, rows: usize) -> u64 {
        let rows = u64::try_from(rows).unwrap_or(u64::MAX);
        self.base.saturating_add(self.per_row.saturating_mul(rows))
    }
}

/// How large a component is, which tells how it was made and so what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SizeClass {
    /// At most 64 KiB: Rust or C. Answers in microseconds, on the calling thread.
    Compact,
    /// At most 2 MiB: a small interpreter (QuickJS), or a native guest with a large standard library.
    Medium,
    /// A large interpreter (CPython, SpiderMonkey).
    Large,
}

impl SizeClass {
    /// Largest component of the compact class, in bytes: seven times a Rust guest without WASI.
    pub const COMPACT_BYTES: usize = 64 << 10;
    /// Largest component of the medium class, in bytes: twice a QuickJS guest.
    pub const MEDIUM_BYTES: usize = 2 << 20;

    /// The class of a component of this size.
    pub const fn of(bytes: usize) -> Self {
        if bytes <= Self::COMPACT_BYTES {
            Self::Compact
        } else if bytes <= Self::MEDIUM_BYTES {
            Self::Medium
        } else {
            Self::Large
        }
    }

    /// The word for reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Compact => "compact",
            Self::Medium => "medium",
            Self::Large => "large",
        }
    }
}

/// What compiling one component may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompileBudget {
    /// Seconds of processor time.
    pub cpu_seconds: u64,
    /// Bytes of address space of the process that compiles, beyond what it has when it starts.
    pub address_space_bytes: u64,
}

/// By class, what compiling may take: a honest component of the class needs a tenth of it or less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompileBudgets {
    /// Of the compact class.
    pub compact: CompileBudget,
    /// Of the medium class.
    pub medium: CompileBudget,
    /// Of the large class.
    pub large: CompileBudget,
}

impl CompileBudgets {
    /// The budget of a component of this class.
    pub const fn of(&self, class: SizeClass) -> CompileBudget {
        match class {
            SizeClass::Compact => self.compact,
            SizeClass::Medium => self.medium,
            SizeClass::Large => self.large,
        }
    }
}

impl Default for CompileBudgets {
    /// 5, 60 and 300 seconds; 1, 2 and 4 GiB.
    fn default() -> Self {
        let budget = |cpu_seconds, gib: u64| CompileBudget {
            cpu_seconds,
            address_space_bytes: gib << 30,
        };
        Self {
            compact: budget(5, 1),
            medium: budget(60, 2),
            large: budget(300, 4),
        }
    }
}

/// Everything that bounds a component. All of it is the platform's to set; a component cannot raise any of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Fuel of a call on the calling thread. An empty loop burns a unit in about 1.3 ns, real code in a tenth of
    /// that: the ceiling of 200,000 is at most a third of a millisecond.
    pub inline_call: FuelBudget,
    /// Fuel of a call to a compact component in the slow lane: the same rates, for invalidations that look at
    /// thousands of groups.
    pub slow_call: FuelBudget,
    /// Fuel of a call to an interpreted component: a small QuickJS guest takes seven million for 64 routes, most of it
    /// to make JavaScript numbers of their columns.
    pub interpreted_call: FuelBudget,
    /// Fuel to start and configure an instance on the calling thread: half a millisecond of an empty loop. A version
    /// that needs more is only ever made ahead or in the slow lane.
    pub setup_inline_fuel: u64,
    /// Fuel to start and configure an instance off the calling thread: 65 ms of an empty loop.
    pub setup_fuel: u64,
    /// Milliseconds a call on the calling thread may take by the wall clock. Fuel ends it long before; this is for
    /// what fuel cannot see, such as page faults. An honest call whose thread is descheduled must survive, and a
    /// busy machine's scheduler takes a few slices of 4 ms.
    pub inline_deadline_ms: u64,
    /// Milliseconds a caller waits for the slow lane, queueing included.
    pub slow_deadline_ms: u64,
    /// Milliseconds starting and configuring may take off the calling thread.
    pub setup_deadline_ms: u64,
    /// Bytes of all linear memories of one instance together.
    pub memory_bytes: usize,
    /// The same for components of the large class: an interpreter's heap and its frozen image.
    pub large_memory_bytes: usize,
    /// Memory above which a version leaves the calling thread: each fresh page costs a page fault, which fuel does
    /// not count, and 2 MiB are 512 of them, about 0.2 ms.
    pub inline_memory_bytes: usize,
    /// Elements of one table.
    pub table_elements: usize,
    /// Core instances in a component: a component built with imports has three (shim, main, fix-up).
    pub core_instances: u32,
    /// The same for interpreted components: CPython comes as some forty modules, the interpreter, its extensions and
    /// the stubs of what it never calls.
    pub interpreted_core_instances: u32,
    /// Linear memories of an interpreted component: QuickJS has one for its heap and two empty ones for stubs. Others
    /// have one.
    pub interpreted_memories: u32,
    /// Tables in a component.
    pub tables: u32,
    /// Bytes that may cross from the guest in one host call or one answer.
    pub hostcall_bytes: usize,
    /// Values (of four bytes) that may cross to the guest in one call.
    pub input_cells: usize,
    /// Bytes of a component.
    pub component_bytes: usize,
    /// Functions in a component, all modules together: each costs compiling some tens of microseconds however short it
    /// is. CPython has 13,490.
    pub functions: u32,
    /// Components within a component: QuickJS with its stubs has 25.
    pub nested_components: u32,
    /// Bytes of one function's body: compile time grows faster than linearly with it, and 512 KiB is three times
    /// CPython's main loop.
    pub function_bytes: usize,
    /// Bytes of a binding's configuration.
    pub config_bytes: usize,
    /// What compiling a component may take.
    pub compile: CompileBudgets,
    /// Instances that may exist at once in this process.
    pub pool_instances: u32,
    /// Instances kept ready for each compact version that was asked; interpreted ones keep one, as does a version
    /// nobody asked yet.
    pub ready_instances: usize,
    /// Calls one tenant may have on calling threads at once. One more goes to the slow lane.
    pub inline_calls_per_tenant: usize,
    /// The same for the platform's own policies, which every tenant's requests share.
    pub inline_calls_platform: usize,
    /// Threads of the slow lane. A scope runs on one of them at a time (the platform on half).
    pub slow_threads: usize,
    /// Calls one scope may have waiting in the slow lane. One more is answered `saturated`.
    pub slow_queue_per_scope: usize,
    /// Calls waiting in the slow lane altogether.
    pub slow_queue: usize,
    /// Most fuel of a call, whatever its rows earn it.
    pub fuel_per_call: u64,
    /// Calls a scope may have under way at once, waiting ones included.
    pub concurrent_calls: usize,
    /// Log lines a policy may write each second, and at once after a silence: enough to follow a few requests by eye, too
    /// few to fill a disk (100 lines of 256 bytes are 2 GB a day).
    pub log_lines_per_second: u32,
}

/// What one tenant's policies may use, where that is not as usual. Never more than [`Limits`] allow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TenantLimits {
    /// Fuel of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fuel_per_call: Option<u64>,
    /// Milliseconds of a call by the clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_ms: Option<u64>,
    /// Memory of an instance, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<usize>,
    /// Calls under way at once, of all the tenant's policies together. One more is answered `saturated`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrent_calls: Option<usize>,
    /// Log lines a policy may write each second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_lines_per_second: Option<u32>,
}

/// A limit of a tenant that is not between what makes sense and what [`Limits`] allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found} is not in the allowed range, {least} to {most}")]
pub struct OutOfRange {
    /// Which one, as [`TenantLimits`] calls it.
    pub key: &'static str,
    /// What it was to be.
    pub found: u64,
    /// The least it can be.
    pub least: u64,
    /// The most it can be.
    pub most: u64,
}

impl TenantLimits {
    /// These limits where they are given, else those of `usual`.
    #[must_use]
    pub fn over(&self, usual: Self) -> Self {
        Self {
            fuel_per_call: self.fuel_per_call.or(usual.fuel_per_call),
            call_ms: self.call_ms.or(usual.call_ms),
            memory_mib: self.memory_mib.or(usual.memory_mib),
            concurrent_calls: self.concurrent_calls.or(usual.concurrent_calls),
            log_lines_per_second: self.log_lines_per_second.or(usual.log_lines_per_second),
        }
    }

    /// Whether each is something that `all` allow; the first that is not.
    pub fn check(&self, all: &Limits) -> Result<(), OutOfRange> {
        let wide = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let memory = all.memory_bytes.max(all.large_memory_bytes) >> 20;
        let fuel = [all.inline_call, all.slow_call, all.interpreted_call].map(|budget| budget.ceiling);
        let fuel = fuel.into_iter().fold(0, u64::max).min(all.fuel_per_call);
        let deadline = all.inline_deadline_ms.max(all.slow_deadline_ms);
        let log = all.log_lines_per_second.into();
        let ranges = [
            ("fuel_per_call", self.fuel_per_call, 1, fuel),
            ("call_ms", self.call_ms, 1, deadline),
            ("memory_mib", self.memory_mib.map(wide), 1, wide(memory)),
            (
                "concurrent_calls",
                self.concurrent_calls.map(wide),
                1,
                wide(all.calls_under_way()),
            ),
            (
                "log_lines_per_second",
                self.log_lines_per_second.map(u64::from),
                0,
                log,
            ),
        ];
        for (key, found, least, most) in ranges {
            if let Some(found) = found.filter(|found| !(least..=most).contains(found)) {
                return Err(OutOfRange {
                    key,
                    found,
                    least,
                    most,
                });
            }
        }
        Ok(())
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            inline_call: FuelBudget {
                base: 20_000,
                per_row: 1_000,
                ceiling: 200_000,
            },
            slow_call: FuelBudget {
                base: 20_000,
                per_row: 1_000,
                ceiling: 5_000_000,
            },
            interpreted_call: FuelBudget {
                base: 2_000_000,
                per_row: 200_000,
                ceiling: 20_000_000,
            },
            setup_inline_fuel: 400_000,
            setup_fuel: 50_000_000,
            inline_deadline_ms: 20,
            slow_deadline_ms: 50,
            setup_deadline_ms: 500,
            memory_bytes: 16 << 20,
            large_memory_bytes: 128 << 20,
            inline_memory_bytes: 2 << 20,
            table_elements: 10_000,
            core_instances: 16,
            interpreted_core_instances: 64,
            interpreted_memories: 4,
            tables: 4,
            hostcall_bytes: 256 << 10,
            input_cells: 512 << 10,
            component_bytes: 24 << 20,
            functions: 40_000,
            nested_components: 64,
            function_bytes: 512 << 10,
            config_bytes: 64 << 10,
            compile: CompileBudgets::default(),
            pool_instances: 1024,
            ready_instances: 8,
            inline_calls_per_tenant: 1,
            inline_calls_platform: 16,
            slow_threads: 4,
            slow_queue_per_scope: 16,
            slow_queue: 64,
            fuel_per_call: u64::MAX,
            concurrent_calls: usize::MAX,
            log_lines_per_second: 100,
        }
    }
}

/// Longest reason of a refusal handed to the client, in bytes; longer ones are cut.
pub(crate) const REASON_MAX_BYTES: usize = 512;
/// Longest a routing policy can hold a request back at once, in milliseconds; longer is taken as this. As long as
/// `portolan_decide::ask::MAX_DEFER_MS`, which this crate cannot see and which cuts whatever any policy answers.
pub(crate) const DEFER_MAX_MS: u32 = 10_000;
/// Most directives in one answer.
pub(crate) const DIRECTIVES_MAX: usize = 1024;
/// Longest kind, name or version of a dependency in a directive, in bytes. Longer is a bad answer: cut, it would name
/// another dependency.
pub(crate) const DEPENDENCY_TEXT_MAX_BYTES: usize = 512;

impl Limits {
    /// The memory an instance of this class may have, in bytes.
    pub fn memory_for(&self, class: SizeClass) -> usize {
        match class {
            SizeClass::Compact | SizeClass::Medium => self.memory_bytes,
            SizeClass::Large => self.large_memory_bytes,
        }
    }

    /// The core instances a component of this class may have.
    pub fn core_instances_for(&self, class: SizeClass) -> usize {
        match class {
            SizeClass::Compact => self.core_instances as usize,
            SizeClass::Medium | SizeClass::Large => self.interpreted_core_instances as usize,
        }
    }

    /// The linear memories a component of this class may have.
    pub fn memories_for(&self, class: SizeClass) -> usize {
        match class {
            SizeClass::Compact => 1,
            SizeClass::Medium | SizeClass::Large => self.interpreted_memories as usize,
        }
    }

    /// The fuel a call over `rows` rows may use.
    pub fn call_fuel(&self, class: SizeClass, rows: usize) -> u64 {
        match class {
            SizeClass::Compact if self.inline_call.is_capped(rows) => self.slow_call.for_rows(rows),
            SizeClass::Compact => self.inline_call.for_rows(rows),
            SizeClass::Medium | SizeClass::Large => self.interpreted_call.for_rows(rows),
        }
        .min(self.fuel_per_call)
    }

    /// The most calls of one tenant that can be under way: those on calling threads, one in the slow lane, and those that
    /// wait for it.
    fn calls_under_way(&self) -> usize {
        let slow = self.slow_queue_per_scope.saturating_add(1);
        self.concurrent_calls
            .min(self.inline_calls_per_tenant.saturating_add(slow))
    }

    /// The same, narrowed to what one tenant may use.
    pub fn narrowed(&self, tenant: &TenantLimits) -> Self {
        let call_ms = tenant.call_ms.unwrap_or(u64::MAX);
        let memory = tenant
            .memory_mib
            .map_or(usize::MAX, |mib| mib.saturating_mul(1 << 20));
        Self {
            fuel_per_call: self.fuel_per_call.min(tenant.fuel_per_call.unwrap_or(u64::MAX)),
            inline_deadline_ms: self.inline_deadline_ms.min(call_ms),
            slow_deadline_ms: self.slow_deadline_ms.min(call_ms),
            memory_bytes: self.memory_bytes.min(memory),
            large_memory_bytes: self.large_memory_bytes.min(memory),
            concurrent_calls: self
                .concurrent_calls
                .min(tenant.concurrent_calls.unwrap_or(usize::MAX)),
            log_lines_per_second: self
                .log_lines_per_second
                .min(tenant.log_lines_per_second.unwrap_or(u32::MAX)),
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuel_grows_with_rows_up_to_the_ceiling() {
        let budget = Limits::default().inline_call;
        assert_eq!((budget.for_rows(0), budget.for_rows(64)), (20_000, 84_000));
        assert_eq!((budget.for_rows(180), budget.is_capped(180)), (200_000, false));
        assert_eq!((budget.for_rows(181), budget.is_capped(181)), (200_000, true));
        assert_eq!(budget.for_rows(usize::MAX), 200_000);
    }

    #[test]
    fn the_contract_says_how_long_a_deferral_may_be() {
        let said = format!("this many milliseconds (at most {DEFER_MAX_MS})");
        assert!(crate::POLICY_WIT.contains(&said), "wit/policy.wit says otherwise");
    }

    #[test]
    fn a_tenants_limits_narrow_and_never_widen() {
        let all = Limits::default();
        assert_eq!(all.narrowed(&TenantLimits::default()), all);
        let wide = TenantLimits {
            fuel_per_call: Some(u64::MAX),
            call_ms: Some(1_000_000),
            memory_mib: Some(1_000_000),
            concurrent_calls: None,
            log_lines_per_second: Some(1_000_000),
        };
        assert_eq!(all.narrowed(&wide), all);
        let narrow = all.narrowed(&TenantLimits {
            fuel_per_call: Some(30_000),
            call_ms: Some(30),
            memory_mib: Some(2),
            concurrent_calls: Some(3),
            log_lines_per_second: Some(5),
        });
        assert_eq!(narrow.call_fuel(SizeClass::Compact, 64), 30_000);
        assert_eq!(narrow.call_fuel(SizeClass::Compact, 0), 20_000);
        assert_eq!((narrow.inline_deadline_ms, narrow.slow_deadline_ms), (20, 30));
        assert_eq!(narrow.memory_for(SizeClass::Large), 2 << 20);
    }

    #[test]
    fn a_tenants_own_limit_lies_over_the_usual_one() {
        let usual = TenantLimits {
            fuel_per_call: Some(30_000),
            call_ms: Some(5),
            ..TenantLimits::default()
        };
        let own = TenantLimits {
            fuel_per_call: Some(60_000),
            memory_mib: Some(2),
            ..TenantLimits::default()
        };
        let both = TenantLimits {
            call_ms: Some(5),
            ..own
        };
        assert_eq!(own.over(usual), both);
        assert_eq!(TenantLimits::default().over(usual), usual);
    }

    #[test]
    fn each_limit_of_a_tenant_has_a_range() {
        let all = Limits::default();
        let limits = |[fuel, ms, mib, calls, lines]: [u64; 5]| TenantLimits {
            fuel_per_call: Some(fuel),
            call_ms: Some(ms),
            memory_mib: Some(usize::try_from(mib).unwrap()),
            concurrent_calls: Some(usize::try_from(calls).unwrap()),
            log_lines_per_second: Some(u32::try_from(lines).unwrap()),
        };
        let (least, most) = ([1, 1, 1, 1, 0], [20_000_000, 50, 128, 18, 100]);
        assert_eq!(TenantLimits::default().check(&all), Ok(()));
        assert_eq!(limits(least).check(&all), Ok(()));
        assert_eq!(limits(most).check(&all), Ok(()));
        for (at, key) in [
            "fuel_per_call",
            "call_ms",
            "memory_mib",
            "concurrent_calls",
            "log_lines_per_second",
        ]
        .into_iter()
        .enumerate()
        {
            let mut beyond = most;
            beyond[at] += 1;
            let error = limits(beyond).check(&all).unwrap_err();
            assert_eq!((error.key, error.most), (key, most[at]));
            if least[at] > 0 {
                let mut none = least;
                none[at] = 0;
                assert_eq!(limits(none).check(&all).unwrap_err().key, key);
            }
        }
    }

    #[test]
    fn classes_end_where_they_say() {
        assert_eq!(SizeClass::of(64 << 10), SizeClass::Compact);
        assert_eq!(SizeClass::of((64 << 10) + 1), SizeClass::Medium);
        assert_eq!(SizeClass::of(2 << 20), SizeClass::Medium);
        assert_eq!(SizeClass::of((2 << 20) + 1), SizeClass::Large);
    }
}
