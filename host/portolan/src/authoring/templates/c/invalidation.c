// Nothing outlives the version it was computed with; what nobody used for a while goes; room is made when asked.
#include "portolan.h"

// KV unused for longer goes at the next tick: {"max_idle_ms": 1800000}.
static uint32_t max_idle_ms = 1800000;

const char *configure(text config, const name_tables *names) {
    (void)names; // the tables of sites, models and user classes, for policies that need names
    setting settings[] = {{"max_idle_ms", &max_idle_ms, 0}};
    return settings_read(config, settings, 1);
}

static directives some(size_t count) {
    return (directives){portolan_allocate(count * sizeof(directive)), count};
}

directives react(const event *event, portolan_matrix groups) {
    directives none = {0, 0}, all;
    switch (event->kind) {
    case MODEL_UPDATED:
        all = some(1);
        all.items[0].kind = BELOW_VERSION;
        all.items[0].below_version.model = event->model_updated.model;
        all.items[0].below_version.version = event->model_updated.new_version;
        return all;
    case DEPENDENCIES_CHANGED:
        all = some(event->dependencies_changed.count);
        for (size_t i = 0; i < all.count; i++) {
            all.items[i].kind = DEPENDS_ON;
            all.items[i].depends_on = event->dependencies_changed.items[i];
        }
        return all;
    case CAPACITY_PRESSURE: {
        // A tenth stays free, so that the next request does not bring the next event.
        uint32_t used = event->capacity_pressure.used_mib, keep = event->capacity_pressure.limit_mib / 10 * 9;
        if (used <= keep) return none;
        all = some(1);
        all.items[0].kind = FREE_MIB;
        all.items[0].free_mib = used - keep;
        return all;
    }
    case TENANT_REMOVED:
        all = some(groups.count);
        for (size_t i = 0; i < all.count; i++) {
            all.items[i].kind = DROP_GROUP;
            all.items[i].drop_group = group_group(group_at(groups, i));
        }
        return all;
    case TICK:
        all = some(1);
        all.items[0].kind = IDLE_LONGER_THAN;
        all.items[0].idle_longer_than = max_idle_ms;
        return all;
    case PREFIX_REVOKED: return none; // the host knows the prefix by its hash
    }
    return none;
}
