//! The four questions as traits: what a policy's author implements, whether the policy is compiled into the host or
//! built as a component. Rows come as typed views, so that no author sees a column number.

use super::config::ConfigError;
use crate::answer::{Directive, Placement, RoutingDecision};
use crate::column::{CostMatrix, CostRow, CostView, GroupView, Matrix, NEVER, RequestView, RouteView};
use crate::names::NameTables;
use crate::question::{Event, Subject};

/// Which sites may see this data.
pub trait Residency: Send + Sync {
    /// Reads the binding's text, once, before anything is asked.
    fn configure(config: &str, names: &NameTables) -> Result<Self, ConfigError>
    where
        Self: Sized;

    /// One placement a site, in the order of the name table. The request is empty when stored KV is asked about.
    fn partition(&self, subject: &Subject, request: RequestView<'_>) -> Vec<Placement>;
}

/// What each route costs.
pub trait Cost: Send + Sync {
    /// Reads the binding's text, once, before anything is asked.
    fn configure(config: &str, names: &NameTables) -> Result<Self, ConfigError>
    where
        Self: Sized;

    /// What one route costs.
    fn estimate(&self, request: RequestView<'_>, route: RouteView<'_>) -> CostRow;

    /// What every route costs, for a policy that has to see all of them at once.
    fn estimate_all(&self, request: RequestView<'_>, routes: Routes<'_>) -> CostMatrix {
        let mut costs = CostMatrix::default();
        for route in routes.iter() {
            costs.push(&self.estimate(request, route));
        }
        costs
    }
}

/// Which route to take.
pub trait Routing: Send + Sync {
    /// Reads the binding's text, once, before anything is asked.
    fn configure(config: &str, names: &NameTables) -> Result<Self, ConfigError>
    where
        Self: Sized;

    /// Scores the candidates, most easily with [`Candidates::scores`] or [`Candidates::ranks`]; or defers, or
    /// refuses.
    fn decide(&self, request: RequestView<'_>, candidates: Candidates<'_>) -> RoutingDecision;
}

/// Which cached KV dies when the world changes.
pub trait Invalidation: Send + Sync {
    /// Reads the binding's text, once, before anything is asked.
    fn configure(config: &str, names: &NameTables) -> Result<Self, ConfigError>
    where
        Self: Sized;

    /// What dies.
    fn react(&self, event: &Event, groups: Groups<'_>) -> Vec<Directive>;
}

/// The candidate routes of a request.
#[derive(Clone, Copy, Debug)]
pub struct Routes<'a>(pub Matrix<'a>);

impl<'a> Routes<'a> {
    /// The routes in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = RouteView<'a>> + Clone + use<'a> {
        self.0.rows().map(RouteView)
    }
}

/// The groups of cached blocks that an invalidation may touch.
#[derive(Clone, Copy, Debug)]
pub struct Groups<'a>(pub Matrix<'a>);

impl<'a> Groups<'a> {
    /// The groups in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = GroupView<'a>> + Clone + use<'a> {
        self.0.rows().map(GroupView)
    }
}

/// A route with what it costs.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The route.
    pub route: RouteView<'a>,
    /// Its cost; all zero where the cost policy gave no row.
    pub cost: CostView<'a>,
}

impl Candidate<'_> {
    /// Whether the cost policy ruled the route out.
    pub fn is_ruled_out(&self) -> bool {
        self.cost.total_us() == NEVER
    }

    /// Prompt tokens that the prefill instance does not hold.
    pub fn uncached_tokens(&self, request: RequestView<'_>) -> u32 {
        request.prompt_tokens().saturating_sub(self.route.cached_tokens())
    }
}

/// The candidate routes of a request, each with its cost.
#[derive(Clone, Copy, Debug)]
pub struct Candidates<'a> {
    routes: Matrix<'a>,
    costs: Matrix<'a>,
}

impl<'a> Candidates<'a> {
    /// Puts routes and costs side by side, row by row. Routes decide how many there are.
    pub fn new(routes: Matrix<'a>, costs: Matrix<'a>) -> Self {
        Self { routes, costs }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.routes.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    /// The candidates in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Candidate<'a>> + Clone + use<'a> {
        let costs = self.costs;
        self.routes.rows().enumerate().map(move |(i, row)| Candidate {
            route: RouteView(row),
            cost: CostView(costs.row(i).unwrap_or(&[])),
        })
    }
}
