// Requests stay in the region they came in at, as long as nobody waits too long there.
import { Tier, byRank, routing, settings } from "./portolan.js";

let configured = {
  // With more than this to wait for, another region is as good.
  patience_us: 500000,
};
let regions = [];

export const { lifecycle, routingPolicy } = routing({
  configure(config, names) {
    configured = settings(config, configured);
    regions = names.sites.map((site) => site.region);
  },

  decide(request, candidates) {
    const home = regions[request.originSite];
    return byRank(request, candidates, ({ route, cost }) => {
      const atHome = home !== undefined && regions[route.prefillSite] === home;
      const busy = route.queueUs > configured.patience_us;
      return { tier: atHome && !busy ? Tier.preferred : Tier.second, score: cost.totalUs };
    });
  },
});
