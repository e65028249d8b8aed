// Nothing outlives the version it was computed with; what nobody used for a while goes; room is made when asked.
//
// 64-bit values (model versions, times) are exact up to 2^53; the host's own rule answers when one is larger, as the
// warning `probe-failed` of the build says of its largest probe.
import { invalidation, settings } from "./portolan.js";

let configured = {
  // KV unused for longer goes at the next tick.
  max_idle_ms: 1800000,
};

export const { lifecycle, invalidationPolicy } = invalidation({
  // `names` holds the tables of sites, models and user classes, for policies that need names.
  configure(config, names) {
    configured = settings(config, configured);
  },

  react({ tag, val }, groups) {
    switch (tag) {
      case "model-updated":
        return [{ tag: "below-version", val: { model: val.model, version: val.newVersion } }];
      case "dependencies-changed":
        return val.map((dependency) => ({ tag: "depends-on", val: dependency }));
      case "capacity-pressure": {
        // A tenth stays free, so that the next request does not bring the next event.
        const excess = val.usedMib - Math.floor(val.limitMib / 10) * 9;
        return excess > 0 ? [{ tag: "free-mib", val: excess }] : [];
      }
      case "tenant-removed":
        return groups.map((group) => ({ tag: "drop-group", val: group.group }));
      case "tick":
        return [{ tag: "idle-longer-than", val: configured.max_idle_ms }];
      default: // a revoked prefix is known to the host by its hash
        return [];
    }
  },
});
