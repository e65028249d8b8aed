"""Data stays in its own jurisdiction; sites of one further jurisdiction may compute on it without keeping it."""

from wit_world import exports
from wit_world.exports.residency_policy import Placement

from portolan import ANY_JURISDICTION, settings, told

configured = {
    # The further jurisdiction; empty: nowhere else.
    "compute_also_in": "",
}
tables = None


class Lifecycle(exports.Lifecycle):
    def configure(self, config, names):
        global configured, tables
        configured = settings(config, configured)
        tables = names


class ResidencyPolicy(exports.ResidencyPolicy):
    @told
    def partition(self, subject, request):
        return [placement(subject.data_jurisdiction, site.jurisdiction) for site in tables.sites]


def placement(data, here):
    if data in (ANY_JURISDICTION, here):
        return Placement.RESIDENT
    also = configured["compute_also_in"]
    known = also and here < len(tables.jurisdictions)
    return Placement.TRANSIENT if known and tables.jurisdictions[here] == also else Placement.DENIED
