// Expected time to first token, with the route's price added as time.
#include "portolan.h"

// How many microseconds of waiting a millionth of the operator's unit is worth: {"us_per_price_micro": 100}.
static uint32_t us_per_price_micro = 100;

const char *configure(text config, const name_tables *names) {
    (void)names; // the tables of sites, models and user classes, for policies that need names
    setting settings[] = {{"us_per_price_micro", &us_per_price_micro, 0}};
    return settings_read(config, settings, 1);
}

cost estimate(request_row request, route_row route) {
    (void)request;
    // The host's own estimates; prefill covers the uncached tokens only.
    uint64_t queue = route_queue_us(route), prefill = route_prefill_us(route), decode = route_decode_us(route);
    // KV streams while prefill runs: only what is longer than prefill is waited for, and one round trip.
    uint64_t moving = route_transfer_us(route), transfer = 0;
    if (!route_is_local(route)) {
        transfer = (moving > prefill ? moving - prefill : 0) + route_link_rtt_us(route);
    }
    uint64_t price = (uint64_t)route_price_micros(route) * us_per_price_micro;
    return (cost){
        .total_us = finite(queue + prefill + transfer + decode + price),
        .queue_us = finite(queue),
        .prefill_us = finite(prefill),
        .transfer_us = finite(transfer),
        .decode_us = finite(decode),
    };
}
