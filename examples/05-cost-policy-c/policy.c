// A weighted sum: what waiting, computing and moving count for is configured, in thousandths.
#include "portolan.h"

static uint32_t queue_permille = 1000;
static uint32_t prefill_permille = 1000;
static uint32_t transfer_permille = 1000;

const char *configure(text config, const name_tables *names) {
    (void)names;
    setting settings[] = {
        {"queue_permille", &queue_permille, 0},
        {"prefill_permille", &prefill_permille, 0},
        {"transfer_permille", &transfer_permille, 0},
    };
    return settings_read(config, settings, 3);
}

static uint64_t weighted(uint32_t microseconds, uint32_t permille) {
    return (uint64_t)microseconds * permille / 1000;
}

cost estimate(request_row request, route_row route) {
    (void)request;
    uint64_t queue = weighted(route_queue_us(route), queue_permille);
    uint64_t prefill = weighted(route_prefill_us(route), prefill_permille);
    uint64_t transfer = 0;
    if (!route_is_local(route)) {
        transfer = weighted(route_transfer_us(route), transfer_permille) + route_link_rtt_us(route);
    }
    return (cost){
        .total_us = finite(queue + prefill + transfer),
        .queue_us = finite(queue),
        .prefill_us = finite(prefill),
        .transfer_us = finite(transfer),
    };
}
