"""Nothing outlives the version it was computed with; what nobody used for a while goes; room is made when asked."""

from wit_world import exports
from wit_world.exports import invalidation_policy as wit

from portolan import groups_of, settings, told

configured = {
    # KV unused for longer goes at the next tick.
    "max_idle_ms": 1_800_000,
}


class Lifecycle(exports.Lifecycle):
    # `names` holds the tables of sites, models and user classes, for policies that need names.
    def configure(self, config, names):
        global configured
        configured = settings(config, configured)


class InvalidationPolicy(exports.InvalidationPolicy):
    @told
    def react(self, event, stride, groups):
        match event:
            case wit.Event_ModelUpdated(change):
                return [wit.Directive_BelowVersion(wit.VersionFloor(change.model, change.new_version))]
            case wit.Event_DependenciesChanged(changed):
                return [wit.Directive_DependsOn(dependency) for dependency in changed]
            case wit.Event_CapacityPressure(pressure):
                # A tenth stays free, so that the next request does not bring the next event.
                excess = pressure.used_mib - pressure.limit_mib // 10 * 9
                return [wit.Directive_FreeMib(excess)] if excess > 0 else []
            case wit.Event_TenantRemoved():
                return [wit.Directive_DropGroup(group.group) for group in groups_of(stride, groups)]
            case wit.Event_Tick():
                return [wit.Directive_IdleLongerThan(configured["max_idle_ms"])]
        return []  # a revoked prefix is known to the host by its hash
