"""Expected time to first token, with the route's price added as time."""

from wit_world import exports

from portolan import finite, routes_of, settings, told

configured = {
    # How many microseconds of waiting a millionth of the operator's unit is worth.
    "us_per_price_micro": 100,
}


class Lifecycle(exports.Lifecycle):
    # `names` holds the tables of sites, models and user classes, for policies that need names.
    def configure(self, config, names):
        global configured
        configured = settings(config, configured)


class CostPolicy(exports.CostPolicy):
    @told
    def estimate(self, request, stride, routes):
        cells = []
        for route in routes_of(stride, routes):
            # The host's own estimates; prefill covers the uncached tokens only.
            queue, prefill, decode = route.queue_us, route.prefill_us, route.decode_us
            # KV streams while prefill runs: only what is longer than prefill is waited for, and one round trip.
            transfer = 0 if route.is_local else max(0, route.transfer_us - prefill) + route.link_rtt_us
            price = route.price_micros * configured["us_per_price_micro"]
            total = queue + prefill + transfer + decode + price
            # A row: the total, then its parts, the last being what the cache saved.
            cells += [finite(total), finite(queue), finite(prefill), finite(transfer), finite(decode), 0]
        return cells
