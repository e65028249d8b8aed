// Expected time to first token, with the route's price added as time.
import { cost, finite, settings } from "./portolan.js";

let configured = {
  // How many microseconds of waiting a millionth of the operator's unit is worth.
  us_per_price_micro: 100,
};

export const { lifecycle, costPolicy } = cost({
  // `names` holds the tables of sites, models and user classes, for policies that need names.
  configure(config, names) {
    configured = settings(config, configured);
  },

  estimate(request, route) {
    // The host's own estimates; prefill covers the uncached tokens only.
    const { queueUs, prefillUs, decodeUs } = route;
    // KV streams while prefill runs: only what is longer than prefill is waited for, and one round trip.
    const transferUs = route.isLocal ? 0 : Math.max(0, route.transferUs - prefillUs) + route.linkRttUs;
    const price = route.priceMicros * configured.us_per_price_micro;
    return {
      totalUs: finite(queueUs + prefillUs + transferUs + decodeUs + price),
      queueUs: finite(queueUs),
      prefillUs: finite(prefillUs),
      transferUs: finite(transferUs),
      decodeUs: finite(decodeUs),
    };
  },
});
