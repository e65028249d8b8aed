// Short prompts stay where the request came in; long ones go wherever the cost policy says it is cheapest.
#include "portolan.h"

// A prompt with fewer uncached tokens counts as short: {"near_below_tokens": 2048}.
static uint32_t near_below_tokens = 2048;

const char *configure(text config, const name_tables *names) {
    (void)names; // the tables of sites, models and user classes, for policies that need names
    setting settings[] = {{"near_below_tokens", &near_below_tokens, 0}};
    return settings_read(config, settings, 1);
}

decision decide(request_row request, candidates all) {
    rank *ranks = portolan_allocate(all.count * sizeof(rank));
    for (size_t i = 0; i < all.count; i++) {
        candidate c = candidate_at(all, i);
        bool near = route_prefill_site(c.route) == request_origin_site(request);
        bool is_short = uncached_tokens(request, c.route) < near_below_tokens;
        // Routes of the second tier remain as fallbacks when a site fails.
        ranks[i].tier = is_short && !near ? SECOND : PREFERRED;
        ranks[i].score = cost_total_us(c.cost);
    }
    return decision_by_rank(request, all, ranks);
}
