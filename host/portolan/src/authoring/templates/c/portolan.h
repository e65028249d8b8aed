// What a Portolan policy in C sees: typed rows, settings, answers, and the host's own functions.
//
// Numbers are uint32_t in the unit that the name says; wit/policy.wit tells what each column means. There is no C
// library: no malloc, no printf, no clock. Use portolan_allocate for memory; it is given back after each answer.
#ifndef PORTOLAN_H
#define PORTOLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A cost or a score that means "never take this route".
#define NEVER UINT32_MAX
// The index of "no restriction stated" among the jurisdictions.
#define ANY_JURISDICTION 0

// UTF-8, not ended by a zero.
typedef struct {
    const char *bytes;
    size_t length;
} text;

bool text_equals(text a, text b);
// The text of a string literal.
text text_of(const char *literal);

// Zeroed memory until the answer is given, or for good inside `configure`. Never null: it traps when there is none.
void *portolan_allocate(size_t bytes);

// --- Name tables, for `configure` ---

typedef struct {
    text name;
    text region;
    uint32_t jurisdiction; // index into `jurisdictions`
} site;

typedef struct {
    text tenant; // empty for a platform policy
    struct { const site *items; size_t count; } sites;
    struct { const text *items; size_t count; } jurisdictions;
    struct { const text *items; size_t count; } models;
    struct { const text *items; size_t count; } user_classes;
} name_tables;

// --- Settings: the binding's text, a flat JSON object ---

// A key with the place for its value: a number or a text, the other being null. Unset keys leave the place as it is.
typedef struct {
    const char *key;
    uint32_t *number;
    text *words;
} setting;

// Fills the places. Gives null, or what is wrong; an empty text sets nothing.
const char *settings_read(text config, const setting *settings, size_t count);

// --- Rows ---

typedef struct {
    const uint32_t *cells;
    size_t columns;
} portolan_row;

// Columns are only ever appended: one that the host does not know yet reads as 0.
static inline uint32_t portolan_cell(portolan_row row, size_t column) {
    return column < row.columns ? row.cells[column] : 0;
}

// Types of their own, so that a route cannot be taken for a request.
typedef struct { portolan_row row; } request_row;
typedef struct { portolan_row row; } route_row;
typedef struct { portolan_row row; } cost_row;
typedef struct { portolan_row row; } group_row;

@REQUEST_ACCESSORS@

@ROUTE_ACCESSORS@

@COST_ACCESSORS@

@GROUP_ACCESSORS@

static inline bool route_is_local(route_row route) {
    return route_prefill_site(route) == route_decode_site(route);
}

static inline uint32_t uncached_tokens(request_row request, route_row route) {
    uint32_t all = request_prompt_tokens(request), cached = route_cached_tokens(route);
    return all > cached ? all - cached : 0;
}

// Sums that stop below NEVER instead of wrapping.
static inline uint32_t finite(uint64_t value) {
    return value < NEVER ? (uint32_t)value : NEVER - 1;
}

typedef struct {
    const uint32_t *cells;
    size_t stride;
    size_t count; // rows
} portolan_matrix;

static inline portolan_row portolan_row_at(portolan_matrix matrix, size_t index) {
    portolan_row row = {0, 0};
    if (index < matrix.count) {
        row = (portolan_row){matrix.cells + index * matrix.stride, matrix.stride};
    }
    return row;
}

// --- The host's functions. A component imports only those that it calls. ---

typedef enum { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR } log_level;
void host_log(log_level level, text message);

// False when there is no such key.
bool state_get(text key, uint64_t *value);
// Kept for `ttl_ms`; 0: for good. False when the quota is used up.
bool state_set(text key, uint64_t value, uint32_t ttl_ms);
uint64_t state_add(text key, int64_t delta);

#ifndef PORTOLAN_INVALIDATION
// False when the request has no such label.
bool label_get(text key, text *value);
#endif

// --- What a policy implements: `configure`, and the answer to its question ---

// Gives null, or why the configuration cannot be used.
const char *configure(text config, const name_tables *names);

#ifdef PORTOLAN_RESIDENCY
typedef enum { SERVE, FETCH, REPLICATE, PREWARM, SPILL } purpose;
typedef enum { DENIED, TRANSIENT, RESIDENT } placement;
typedef struct {
    purpose purpose;
    uint32_t data_jurisdiction;
    uint32_t data_class;
    bool is_stored; // whether `from_site` says anything
    uint32_t from_site;
} subject;

// What the site of this index may do; asked for every site. The request's columns are all 0 when stored KV is asked
// about.
placement partition(const subject *subject, request_row request, size_t site);
#endif

#ifdef PORTOLAN_COST
typedef struct {
    uint32_t total_us, queue_us, prefill_us, transfer_us, decode_us, cache_benefit_us;
} cost;

// What one route costs.
cost estimate(request_row request, route_row route);
#endif

#ifdef PORTOLAN_ROUTING
typedef struct {
    route_row route;
    cost_row cost;
} candidate;

typedef struct {
    portolan_matrix routes, costs;
    size_t count;
} candidates;

static inline candidate candidate_at(candidates all, size_t index) {
    return (candidate){{portolan_row_at(all.routes, index)}, {portolan_row_at(all.costs, index)}};
}

// Every route of a tier comes before any of the next.
typedef enum { PREFERRED, SECOND, LAST } tier;
typedef struct {
    tier tier;
    uint32_t score; // lower comes first inside a tier; NEVER rules the route out
} rank;

typedef struct {
    enum { SCORES, DEFER, REFUSE } kind;
    const uint32_t *scores;
    size_t count;
    uint32_t defer_ms;
    text reason;
} decision;

// One score a route. Routes that the client's prefill mode or the cost policy ruled out stay ruled out, whatever
// `ranks` (one a candidate) says; under "remote preferred" local ones come after every remote one.
decision decision_by_rank(request_row request, candidates all, const rank *ranks);
static inline decision decision_defer(uint32_t ms) { return (decision){.kind = DEFER, .defer_ms = ms}; }
static inline decision decision_refuse(text reason) { return (decision){.kind = REFUSE, .reason = reason}; }

// Which route to take.
decision decide(request_row request, candidates all);
#endif

#ifdef PORTOLAN_INVALIDATION
typedef struct {
    text kind, name, version;
} dependency;

typedef struct {
    enum {
        MODEL_UPDATED, DEPENDENCIES_CHANGED, CAPACITY_PRESSURE, PREFIX_REVOKED, TENANT_REMOVED, TICK
    } kind;
    union {
        struct { uint32_t model; uint64_t old_version, new_version; } model_updated;
        struct { const dependency *items; size_t count; } dependencies_changed;
        struct { uint32_t site, used_mib, limit_mib; } capacity_pressure;
        uint64_t prefix_revoked; // keyed hash of the prefix
        uint64_t tick;           // milliseconds since the Unix epoch
    };
} event;

// Laid out as it crosses to the host.
typedef struct {
    uint8_t kind;
    union {
        struct { uint32_t model; uint64_t version; } below_version;
        dependency depends_on;
        uint32_t drop_group;
        uint64_t idle_longer_than; // ms
        uint32_t free_mib;
    };
} directive;
enum { BELOW_VERSION, DEPENDS_ON, DROP_GROUP, IDLE_LONGER_THAN, FREE_MIB };

typedef struct {
    directive *items;
    size_t count;
} directives;

// What dies. At most 1024 directives.
directives react(const event *event, portolan_matrix groups);
static inline group_row group_at(portolan_matrix groups, size_t index) {
    return (group_row){portolan_row_at(groups, index)};
}
#endif

#endif
