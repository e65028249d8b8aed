"""Short prompts stay where the request came in; long ones go wherever the cost policy says it is cheapest."""

from wit_world import exports
from wit_world.exports.routing_policy import Decision_Scores

from portolan import PREFERRED, SECOND, Request, candidates_of, scores_by_rank, settings, told

configured = {
    # A prompt with fewer uncached tokens counts as short.
    "near_below_tokens": 2048,
}


class Lifecycle(exports.Lifecycle):
    # `names` holds the tables of sites, models and user classes, for policies that need names.
    def configure(self, config, names):
        global configured
        configured = settings(config, configured)


class RoutingPolicy(exports.RoutingPolicy):
    @told
    def decide(self, request, stride, routes, cost_stride, costs):
        asked = Request(request)
        near_below_tokens = configured["near_below_tokens"]

        def rank(candidate):
            near = candidate.route.prefill_site == asked.origin_site
            is_short = candidate.route.uncached_tokens(asked) < near_below_tokens
            # Routes of the second tier remain as fallbacks when a site fails.
            return (SECOND if is_short and not near else PREFERRED, candidate.cost.total_us)

        # The other decisions are Decision_Defer(milliseconds) and Decision_Refuse(reason).
        return Decision_Scores(scores_by_rank(asked, candidates_of(stride, routes, cost_stride, costs), rank))
