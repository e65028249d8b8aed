// Between the policy in policy.c and the component's exports. Nothing here needs to change.
//
// The exports follow the canonical ABI: lists and texts come as pointer and length into memory that the host asked
// `cabi_realloc` for; an answer of more than one word goes back as a pointer to it; `cabi_post_...` runs afterwards.
#include "portolan.h"

#define EXPORT(name) __attribute__((export_name(name)))
#define IMPORT(module, name) __attribute__((import_module("portolan:policy/" module "@0.1.0"), import_name(name)))

// --- Memory: a pointer that moves up, and back after each answer ---

extern unsigned char __heap_base;
static uintptr_t next_free;
// What `configure` allocated lies below and stays.
static uintptr_t kept;

static void *allocate(size_t align, size_t bytes) {
    if (next_free == 0) next_free = (uintptr_t)&__heap_base;
    uintptr_t start = (next_free + align - 1) & ~(uintptr_t)(align - 1);
    uintptr_t end = start + bytes;
    uintptr_t have = (uintptr_t)__builtin_wasm_memory_size(0) << 16;
    if (end < start) __builtin_trap();
    if (end > have && __builtin_wasm_memory_grow(0, (end - have + 0xffff) >> 16) == (size_t)-1) __builtin_trap();
    next_free = end;
    return (void *)start;
}

EXPORT("cabi_realloc")
void *cabi_realloc(void *old, size_t old_bytes, size_t align, size_t bytes) {
    unsigned char *fresh = allocate(align, bytes);
    const unsigned char *from = old;
    for (size_t i = 0; i < old_bytes && i < bytes; i++) fresh[i] = from[i];
    return fresh;
}

void *portolan_allocate(size_t bytes) {
    // A page that was used before an answer is not zero any more.
    unsigned char *fresh = allocate(8, bytes);
    for (size_t i = 0; i < bytes; i++) fresh[i] = 0;
    return fresh;
}

static void release(void) { next_free = kept; }

// The compiler calls these two for large structs.
void *memcpy(void *restrict to, const void *restrict from, size_t bytes) {
    unsigned char *t = to;
    const unsigned char *f = from;
    while (bytes--) *t++ = *f++;
    return to;
}

void *memset(void *to, int value, size_t bytes) {
    unsigned char *t = to;
    while (bytes--) *t++ = (unsigned char)value;
    return to;
}

// --- Texts ---

bool text_equals(text a, text b) {
    if (a.length != b.length) return false;
    for (size_t i = 0; i < a.length; i++) {
        if (a.bytes[i] != b.bytes[i]) return false;
    }
    return true;
}

text text_of(const char *literal) {
    size_t length = 0;
    while (literal[length]) length++;
    return (text){literal, length};
}

// --- Settings ---

typedef struct {
    const char *at, *end;
} reader;

static char peek(reader *r) {
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\t' || *r->at == '\r')) r->at++;
    return r->at < r->end ? *r->at : 0;
}

static bool take(reader *r, char wanted) {
    if (peek(r) != wanted) return false;
    r->at++;
    return true;
}

static bool take_words(reader *r, text *words) {
    if (!take(r, '"')) return false;
    words->bytes = r->at;
    while (r->at < r->end && *r->at != '"' && *r->at != '\\') r->at++;
    words->length = (size_t)(r->at - words->bytes);
    return r->at < r->end && *r->at++ == '"';
}

static bool take_number(reader *r, uint32_t *number) {
    uint64_t value = 0;
    char digit = peek(r);
    if (digit < '0' || digit > '9') return false;
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9' && value <= UINT32_MAX) {
        value = value * 10 + (uint64_t)(*r->at++ - '0');
    }
    *number = (uint32_t)value;
    return value <= UINT32_MAX;
}

static const setting *find(text key, const setting *settings, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (text_equals(key, text_of(settings[i].key))) return &settings[i];
    }
    return 0;
}

const char *settings_read(text config, const setting *settings, size_t count) {
    reader r = {config.bytes, config.bytes + config.length};
    if (!peek(&r)) return 0;
    if (!take(&r, '{')) return "the configuration is not a JSON object";
    for (bool first = true; !take(&r, '}'); first = false) {
        text key;
        if (!first && !take(&r, ',')) return "a comma or the object's end is missing";
        if (!take_words(&r, &key) || !take(&r, ':')) return "a key in quotation marks and a colon are missing";
        const setting *known = find(key, settings, count);
        if (!known) return "there is a key that this policy does not know";
        if (known->number && !take_number(&r, known->number)) return "a value is not a whole number below 2^32";
        if (known->words && !take_words(&r, known->words)) return "a value is not a text in quotation marks";
    }
    return peek(&r) ? "there is something after the object's end" : 0;
}

// --- The host ---

IMPORT("host", "log") void import_log(uint32_t level, const char *message, size_t length);
IMPORT("state", "get") void import_state_get(const char *key, size_t length, void *answer);
IMPORT("state", "set") uint32_t import_state_set(const char *key, size_t length, uint64_t value, uint32_t ttl_ms);
IMPORT("state", "add") uint64_t import_state_add(const char *key, size_t length, int64_t delta);

void host_log(log_level level, text message) { import_log(level, message.bytes, message.length); }

bool state_get(text key, uint64_t *value) {
    struct { uint8_t some; uint64_t value; } answer = {0, 0};
    import_state_get(key.bytes, key.length, &answer);
    if (answer.some) *value = answer.value;
    return answer.some;
}

bool state_set(text key, uint64_t value, uint32_t ttl_ms) {
    return import_state_set(key.bytes, key.length, value, ttl_ms);
}

uint64_t state_add(text key, int64_t delta) { return import_state_add(key.bytes, key.length, delta); }

#ifndef PORTOLAN_INVALIDATION
IMPORT("labels", "get") void import_label_get(const char *key, size_t length, void *answer);

bool label_get(text key, text *value) {
    struct { uint8_t some; text value; } answer = {0, {0, 0}};
    import_label_get(key.bytes, key.length, &answer);
    if (answer.some) *value = answer.value;
    return answer.some;
}
#endif

// --- Lifecycle ---

static name_tables known_names;
static struct { uint8_t is_error; text problem; } configured;

EXPORT("portolan:policy/lifecycle@0.1.0#configure")
void *export_configure(const char *config, size_t config_length, const char *tenant, size_t tenant_length,
                       const site *sites, size_t site_count, const text *jurisdictions, size_t jurisdiction_count,
                       const text *models, size_t model_count, const text *classes, size_t class_count) {
    known_names = (name_tables){
        {tenant, tenant_length},   {sites, site_count},    {jurisdictions, jurisdiction_count},
        {models, model_count},     {classes, class_count},
    };
    const char *problem = configure((text){config, config_length}, &known_names);
    configured.is_error = problem != 0;
    if (problem) configured.problem = text_of(problem);
    return &configured;
}

EXPORT("cabi_post_portolan:policy/lifecycle@0.1.0#configure")
void after_configure(void *answer) {
    (void)answer;
    kept = next_free;
}

#ifndef PORTOLAN_INVALIDATION
static request_row request_of(const uint32_t *cells, size_t count) { return (request_row){{cells, count}}; }
#endif

#if defined(PORTOLAN_COST) || defined(PORTOLAN_ROUTING) || defined(PORTOLAN_INVALIDATION)
static portolan_matrix matrix_of(uint32_t stride, const uint32_t *cells, size_t count) {
    return (portolan_matrix){cells, stride, stride ? count / stride : 0};
}
#endif

// --- The questions ---

#ifdef PORTOLAN_RESIDENCY
static struct { const uint8_t *placements; size_t count; } answered;

EXPORT("portolan:policy/residency-policy@0.1.0#partition")
void *export_partition(uint32_t purpose_asked, uint32_t data_jurisdiction, uint32_t data_class, uint32_t is_stored,
                       uint32_t from_site, const uint32_t *request, size_t request_count) {
    subject asked = {(purpose)purpose_asked, data_jurisdiction, data_class, is_stored != 0, from_site};
    size_t count = known_names.sites.count;
    uint8_t *placements = portolan_allocate(count);
    for (size_t i = 0; i < count; i++) {
        placements[i] = (uint8_t)partition(&asked, request_of(request, request_count), i);
    }
    answered.placements = placements;
    answered.count = count;
    return &answered;
}

EXPORT("cabi_post_portolan:policy/residency-policy@0.1.0#partition")
void after_partition(void *answer) {
    (void)answer;
    release();
}
#endif

#ifdef PORTOLAN_COST
static struct { const cost *rows; size_t cells; } answered;

EXPORT("portolan:policy/cost-policy@0.1.0#estimate")
void *export_estimate(const uint32_t *request, size_t request_count, uint32_t stride, const uint32_t *routes,
                      size_t route_cells) {
    portolan_matrix matrix = matrix_of(stride, routes, route_cells);
    cost *rows = portolan_allocate(matrix.count * sizeof(cost));
    for (size_t i = 0; i < matrix.count; i++) {
        rows[i] = estimate(request_of(request, request_count), (route_row){portolan_row_at(matrix, i)});
    }
    answered.rows = rows;
    answered.cells = matrix.count * (sizeof(cost) / sizeof(uint32_t));
    return &answered;
}

EXPORT("cabi_post_portolan:policy/cost-policy@0.1.0#estimate")
void after_estimate(void *answer) {
    (void)answer;
    release();
}
#endif

#ifdef PORTOLAN_ROUTING
// Tiers of the policy, twice: under "remote preferred" the local routes come after all others.
enum { TIERS = 3, PLACES = 2 * TIERS, UNPLACED = PLACES };
// Between the worst route of a place and the best of the next, beside a factor of two, so that the host takes no two
// places for a near-tie.
enum { GAP_US = 1000 };
enum { AUTO, LOCAL_ONLY, REMOTE_PREFERRED, REMOTE_REQUIRED };

static uint32_t place_of(request_row request, candidate c, rank r) {
    uint32_t mode = request_prefill_mode(request);
    bool local = route_is_local(c.route);
    if (mode == LOCAL_ONLY && !local) return UNPLACED;
    if (mode == REMOTE_REQUIRED && local) return UNPLACED;
    if (cost_total_us(c.cost) == NEVER || r.score == NEVER) return UNPLACED;
    return (mode == REMOTE_PREFERRED && local ? TIERS : 0) + (uint32_t)r.tier;
}

static uint32_t smaller(uint64_t a, uint32_t b) { return a < b ? (uint32_t)a : b; }

decision decision_by_rank(request_row request, candidates all, const rank *ranks) {
    uint32_t *scores = portolan_allocate(all.count * sizeof(uint32_t));
    uint8_t *places = portolan_allocate(all.count);
    uint32_t highest[PLACES] = {0}, offsets[PLACES] = {0}, used = 0;
    bool taken[PLACES] = {false};
    for (size_t i = 0; i < all.count; i++) {
        uint32_t place = place_of(request, candidate_at(all, i), ranks[i]);
        places[i] = (uint8_t)place;
        if (place == UNPLACED) continue;
        used += !taken[place];
        taken[place] = true;
        if (ranks[i].score > highest[place]) highest[place] = ranks[i].score;
    }
    uint32_t cap = used <= 1 ? NEVER - 1 : NEVER >> used;
    uint64_t offset = 0;
    for (size_t place = 0; place < PLACES; place++) {
        if (!taken[place]) continue;
        offsets[place] = (uint32_t)offset;
        offset = smaller((offset + smaller(highest[place], cap)) * 2 + GAP_US, NEVER);
    }
    for (size_t i = 0; i < all.count; i++) {
        scores[i] = places[i] == UNPLACED ? NEVER : offsets[places[i]] + smaller(ranks[i].score, cap);
    }
    return (decision){.kind = SCORES, .scores = scores, .count = all.count};
}

static struct {
    uint8_t kind;
    union {
        struct { const uint32_t *items; size_t count; } scores;
        uint32_t defer_ms;
        text reason;
    };
} answered;

EXPORT("portolan:policy/routing-policy@0.1.0#decide")
void *export_decide(const uint32_t *request, size_t request_count, uint32_t stride, const uint32_t *routes,
                    size_t route_cells, uint32_t cost_stride, const uint32_t *costs, size_t cost_cells) {
    candidates all = {matrix_of(stride, routes, route_cells), matrix_of(cost_stride, costs, cost_cells), 0};
    all.count = all.routes.count;
    decision made = decide(request_of(request, request_count), all);
    answered.kind = (uint8_t)made.kind;
    switch (made.kind) {
    case SCORES:
        answered.scores.items = made.scores;
        answered.scores.count = made.count;
        break;
    case DEFER: answered.defer_ms = made.defer_ms; break;
    case REFUSE: answered.reason = made.reason; break;
    }
    return &answered;
}

EXPORT("cabi_post_portolan:policy/routing-policy@0.1.0#decide")
void after_decide(void *answer) {
    (void)answer;
    release();
}
#endif

#ifdef PORTOLAN_INVALIDATION
static directives answered;

static event event_of(uint32_t kind, uint64_t a, uint64_t b, uint64_t c) {
    event happened = {.kind = kind};
    switch (happened.kind) {
    case MODEL_UPDATED:
        happened.model_updated.model = (uint32_t)a;
        happened.model_updated.old_version = b;
        happened.model_updated.new_version = c;
        break;
    case DEPENDENCIES_CHANGED:
        happened.dependencies_changed.items = (const dependency *)(uintptr_t)a;
        happened.dependencies_changed.count = (size_t)b;
        break;
    case CAPACITY_PRESSURE:
        happened.capacity_pressure.site = (uint32_t)a;
        happened.capacity_pressure.used_mib = (uint32_t)b;
        happened.capacity_pressure.limit_mib = (uint32_t)c;
        break;
    case PREFIX_REVOKED: happened.prefix_revoked = a; break;
    case TENANT_REMOVED: break;
    case TICK: happened.tick = a; break;
    }
    return happened;
}

EXPORT("portolan:policy/invalidation-policy@0.1.0#react")
void *export_react(uint32_t kind, uint64_t a, uint64_t b, uint64_t c, uint32_t stride, const uint32_t *groups,
                   size_t group_cells) {
    event happened = event_of(kind, a, b, c);
    answered = react(&happened, matrix_of(stride, groups, group_cells));
    return &answered;
}

EXPORT("cabi_post_portolan:policy/invalidation-policy@0.1.0#react")
void after_react(void *answer) {
    (void)answer;
    release();
}
#endif
