// Short prompts stay where the request came in; long ones go wherever the cost policy says it is cheapest.
import { Tier, byRank, routing, settings } from "./portolan.js";

let configured = {
  // A prompt with fewer uncached tokens counts as short.
  near_below_tokens: 2048,
};

export const { lifecycle, routingPolicy } = routing({
  // `names` holds the tables of sites, models and user classes, for policies that need names.
  configure(config, names) {
    configured = settings(config, configured);
  },

  decide(request, candidates) {
    return byRank(request, candidates, ({ route, cost }) => {
      const near = route.prefillSite === request.originSite;
      const isShort = route.uncachedTokens(request) < configured.near_below_tokens;
      // Routes of the second tier remain as fallbacks when a site fails.
      return { tier: isShort && !near ? Tier.second : Tier.preferred, score: cost.totalUs };
    });
  },
});
