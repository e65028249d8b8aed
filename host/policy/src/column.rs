//! The columns of every row and matrix that crosses to a policy, with typed views.
//!
//! Values are `u32` in the unit the column's name says. Columns are only ever appended: a view steps by the matrix'
//! own stride and reads a column beyond it as 0, so host and guest may be of different age. The order here is the
//! order in `wit/policy.wit`; a test holds the two together.

/// A cost or score that means "never take this route".
pub const NEVER: u32 = u32::MAX;

/// A row-major matrix of `u32` with a stride.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    stride: usize,
    cells: &'a [u32],
}

impl<'a> Matrix<'a> {
    /// Wraps `cells`; a last row shorter than `stride` is not seen. A stride of zero makes an empty matrix.
    pub fn new(stride: u32, cells: &'a [u32]) -> Self {
        Self {
            stride: stride as usize,
            cells,
        }
    }

    /// Values in a row.
    pub fn stride(&self) -> u32 {
        self.stride as u32
    }

    /// All values, row by row.
    pub fn cells(&self) -> &'a [u32] {
        self.cells
    }

    /// Number of whole rows.
    pub fn len(&self) -> usize {
        self.cells.len().checked_div(self.stride).unwrap_or(0)
    }

    /// Whether there is no whole row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rows in order.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &'a [u32]> + Clone + use<'a> {
        self.cells.chunks_exact(self.stride.max(1)).take(self.len())
    }

    /// Row `index`, or `None` beyond the end.
    pub fn row(&self, index: usize) -> Option<&'a [u32]> {
        let start = index.checked_mul(self.stride)?;
        (index < self.len()).then(|| &self.cells[start..start + self.stride])
    }
}

fn wide(lo: u32, hi: u32) -> u64 {
    u64::from(lo) | (u64::from(hi) << 32)
}

macro_rules! columns {
    (
        $(#[$cdoc:meta])* columns $column:ident;
        $(#[$rdoc:meta])* row $row:ident;
        $(#[$vdoc:meta])* view $view:ident;
        { $( $(#[$doc:meta])* $variant:ident => $field:ident ),* $(,)? }
    ) => {
        $(#[$cdoc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum $column { $( $(#[$doc])* $variant ),* }

        impl $column {
            /// Every column, in order.
            pub const ALL: &'static [$column] = &[$( $column::$variant ),*];
            /// How many columns this host writes.
            pub const COUNT: usize = Self::ALL.len();
            /// The column's name as written in the WIT contract.
            pub fn name(self) -> String {
                match self { $( Self::$variant => stringify!($field).replace('_', "-") ),* }
            }
        }

        $(#[$rdoc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(default)]
        pub struct $row { $( $(#[$doc])* pub $field: u32 ),* }

        impl $row {
            /// The values in column order.
            pub fn to_cells(&self) -> [u32; $column::COUNT] {
                [$( self.$field ),*]
            }
        }

        $(#[$vdoc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $view<'a>(pub &'a [u32]);

        impl $view<'_> {
            $( $(#[$doc])* pub fn $field(&self) -> u32 {
                self.0.get($column::$variant as usize).copied().unwrap_or(0)
            } )*

            /// The row with every column this host knows; columns the row lacks are 0.
            pub fn to_row(&self) -> $row {
                $row { $( $field: self.$field() ),* }
            }
        }
    };
}

columns! {
    /// The request and the moment.
    columns RequestColumn;
    /// The request row, by name.
    row RequestRow;
    /// A typed view of the request row.
    view RequestView;
    {
        /// Index of the tenant in this host's own table.
        Tenant => tenant,
        /// Index into the model table.
        Model => model,
        /// Keyed hash of the conversation, low half; 0 when there is none.
        SessionLo => session_lo,
        /// High half of the session hash.
        SessionHi => session_hi,
        /// Index into the site table: where the request came in.
        OriginSite => origin_site,
        /// Where the data may be processed, as an index into the jurisdictions; 0: no restriction stated.
        Jurisdiction => jurisdiction,
        /// Index into the user classes.
        UserClass => user_class,
        /// 0 interactive, 1 batch, 2 prewarm.
        Kind => kind,
        /// Length of the prompt in tokens.
        PromptTokens => prompt_tokens,
        /// Most tokens the client allows in the answer.
        MaxOutputTokens => max_output_tokens,
        /// The tenant's moving mean of what such requests really produce.
        ExpectedOutputTokens => expected_output_tokens,
        /// 0 auto, 1 local only, 2 remote preferred, 3 remote required.
        PrefillMode => prefill_mode,
        /// 0 is the most urgent.
        Priority => priority,
        /// Hoped-for time to first token in ms; 0: none stated.
        TtftSloMs => ttft_slo_ms,
        /// Seed, low half: same seed, same inputs, same answer.
        SeedLo => seed_lo,
        /// Seed, high half.
        SeedHi => seed_hi,
        /// Milliseconds since the Unix epoch, low half.
        NowMsLo => now_ms_lo,
        /// High half of the time.
        NowMsHi => now_ms_hi,
        /// Uncached length above which offloading raises throughput, from the planner.
        OffloadThresholdTokens => offload_threshold_tokens,
        /// Bit 0: some cross-site link is past its congestion mark.
        ConditionBits => condition_bits,
    }
}

impl RequestView<'_> {
    /// The seed as one number.
    pub fn seed(&self) -> u64 {
        wide(self.seed_lo(), self.seed_hi())
    }

    /// The session hash as one number; 0 when there is no session.
    pub fn session(&self) -> u64 {
        wide(self.session_lo(), self.session_hi())
    }

    /// Milliseconds since the Unix epoch.
    pub fn now_ms(&self) -> u64 {
        wide(self.now_ms_lo(), self.now_ms_hi())
    }
}

columns! {
    /// One way to serve the request.
    columns RouteColumn;
    /// A route row, by name.
    row RouteRow;
    /// A typed view of a route row.
    view RouteView;
    {
        /// Index into the site table.
        PrefillSite => prefill_site,
        /// Index of the prefill instance in the host's table.
        PrefillInstance => prefill_instance,
        /// Index into the site table.
        DecodeSite => decode_site,
        /// Index of the decode instance in the host's table.
        DecodeInstance => decode_instance,
        /// Prompt tokens whose KV the prefill instance already holds.
        CachedTokens => cached_tokens,
        /// Further prompt tokens whose KV another instance holds and could send.
        FetchableTokens => fetchable_tokens,
        /// KV this route moves between sites in KiB; 0 when prefill and decode share one.
        TransferKib => transfer_kib,
        /// The host's estimate of having the uncached part, in µs: computing it, or fetching some of it and computing the
        /// rest.
        PrefillUs => prefill_us,
        /// The host's estimate of moving the KV, in µs, not counting overlap with prefill.
        TransferUs => transfer_us,
        /// The host's estimate of one decode step in the present batch, in µs.
        DecodeUs => decode_us,
        /// The host's estimate of waiting before prefill begins, in µs.
        QueueUs => queue_us,
        /// Requests waiting for prefill on that instance.
        PrefillQueuedRequests => prefill_queued_requests,
        /// Prompt tokens waiting for prefill on that instance.
        PrefillQueuedTokens => prefill_queued_tokens,
        /// Sequences decoding on the decode instance.
        DecodeRunning => decode_running,
        /// Sequences the decode instance can hold.
        DecodeSlots => decode_slots,
        /// How busy the prefill instance was, in thousandths.
        PrefillBusyPermille => prefill_busy_permille,
        /// How busy the decode instance was, in thousandths.
        DecodeBusyPermille => decode_busy_permille,
        /// KV memory in use on the decode instance, in thousandths.
        KvUsedPermille => kv_used_permille,
        /// Round-trip time between prefill and decode site in µs; 0 within a site.
        LinkRttUs => link_rtt_us,
        /// Free bandwidth from prefill to decode site in kbit/s; 0 within a site.
        LinkFreeKbps => link_free_kbps,
        /// Utilisation of that link, mean over the monitor's window, in thousandths.
        LinkBusyPermille => link_busy_permille,
        /// Loss on that link, in thousandths.
        LinkLossPermille => link_loss_permille,
        /// Price of this request on this route, in millionths of the operator's unit.
        PriceMicros => price_micros,
        /// Prompt tokens that the prefill instance would fetch from another site, where that is quicker than computing
        /// them: `prefill-us` counts on it.
        FetchTokens => fetch_tokens,
        /// What such a fetch moves, in KiB.
        FetchKib => fetch_kib,
        /// The host's estimate of such a fetch, in µs: a part of `prefill-us`.
        FetchUs => fetch_us,
    }
}

impl RouteView<'_> {
    /// Whether prefill and decode run at one site.
    pub fn is_local(&self) -> bool {
        self.prefill_site() == self.decode_site()
    }
}

columns! {
    /// What one route costs.
    columns CostColumn;
    /// A cost row, by name.
    row CostRow;
    /// A typed view of a cost row.
    view CostView;
    {
        /// What the router compares, in µs; [`NEVER`] means never.
        TotalUs => total_us,
        /// Part: waiting.
        QueueUs => queue_us,
        /// Part: computing the prompt.
        PrefillUs => prefill_us,
        /// Part: moving KV, beyond what overlaps with prefill.
        TransferUs => transfer_us,
        /// Part: decode.
        DecodeUs => decode_us,
        /// Part, already subtracted: what the cache saved.
        CacheBenefitUs => cache_benefit_us,
    }
}

columns! {
    /// A group of cached blocks that share model, version, site and dependencies.
    columns GroupColumn;
    /// A group row, by name.
    row GroupRow;
    /// A typed view of a group row.
    view GroupView;
    {
        /// The group's number, for `drop-group`.
        Group => group,
        /// Index into the model table.
        Model => model,
        /// Model version, low half.
        VersionLo => version_lo,
        /// Model version, high half.
        VersionHi => version_hi,
        /// Index into the site table.
        Site => site,
        /// Number of blocks.
        Blocks => blocks,
        /// Their size in MiB.
        Mib => mib,
        /// Milliseconds since the last use.
        IdleMs => idle_ms,
        /// How often the group was hit.
        Hits => hits,
        /// What computing it again would cost, in µs.
        RebuildUs => rebuild_us,
        /// Bit n: depends on the n-th dependency named in the event.
        DependsBits => depends_bits,
    }
}

impl GroupView<'_> {
    /// The model version as one number.
    pub fn version(&self) -> u64 {
        wide(self.version_lo(), self.version_hi())
    }
}

/// A growing matrix of routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteMatrix {
    cells: Vec<u32>,
}

impl RouteMatrix {
    /// Appends a row.
    pub fn push(&mut self, row: &RouteRow) {
        self.cells.extend_from_slice(&row.to_cells());
    }

    /// The matrix as a policy sees it.
    pub fn as_matrix(&self) -> Matrix<'_> {
        Matrix::new(RouteColumn::COUNT as u32, &self.cells)
    }

    /// Number of routes.
    pub fn len(&self) -> usize {
        self.cells.len() / RouteColumn::COUNT
    }

    /// Whether there is no route.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }
}

/// A cost matrix as a policy answers it: stride [`CostColumn::COUNT`], one row a route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CostMatrix {
    /// Row-major values.
    pub cells: Vec<u32>,
}

impl CostMatrix {
    /// Appends a row.
    pub fn push(&mut self, row: &CostRow) {
        self.cells.extend_from_slice(&row.to_cells());
    }

    /// The matrix as a policy sees it.
    pub fn as_matrix(&self) -> Matrix<'_> {
        Matrix::new(CostColumn::COUNT as u32, &self.cells)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_beyond_the_stride_read_as_zero() {
        let cells = [1, 2, 3, 4, 5, 6, 7];
        let matrix = Matrix::new(3, &cells);
        assert_eq!(matrix.len(), 2, "the torn last row is not seen");
        let second = RouteView(matrix.row(1).unwrap());
        assert_eq!(
            (second.prefill_site(), second.decode_site(), second.price_micros()),
            (4, 6, 0)
        );
        assert!(matrix.row(2).is_none());
        assert!(Matrix::new(0, &cells).is_empty());
        assert_eq!(Matrix::new(0, &cells).rows().count(), 0);
    }

    #[test]
    fn a_longer_row_than_known_is_read_as_far_as_known() {
        let mut cells = RequestRow {
            prompt_tokens: 9,
            seed_lo: 1,
            seed_hi: 1,
            ..Default::default()
        }
        .to_cells()
        .to_vec();
        cells.extend([77; 5]);
        let view = RequestView(&cells);
        assert_eq!((view.prompt_tokens(), view.seed()), (9, (1 << 32) | 1));
    }
}
