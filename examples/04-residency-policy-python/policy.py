"""Data of one class of users rests nowhere but where it came from; for everybody else all sites are open."""

from wit_world import exports
from wit_world.exports.residency_policy import Placement

from portolan import ANY_JURISDICTION, settings

configured = {
    # The user class that is guarded.
    "guarded_class": "minor",
}
tables = None


class Lifecycle(exports.Lifecycle):
    def configure(self, config, names):
        global configured, tables
        configured = settings(config, configured)
        tables = names


class ResidencyPolicy(exports.ResidencyPolicy):
    def partition(self, subject, request):
        return [placement(subject, site) for site in tables.sites]


def placement(subject, site):
    if not is_guarded(subject.data_class):
        return Placement.RESIDENT
    # Without a jurisdiction of its own, nobody knows where guarded data may rest: nowhere.
    if subject.data_jurisdiction == ANY_JURISDICTION:
        return Placement.TRANSIENT
    return Placement.RESIDENT if subject.data_jurisdiction == site.jurisdiction else Placement.DENIED


def is_guarded(user_class):
    return user_class < len(tables.user_classes) and tables.user_classes[user_class] == configured["guarded_class"]
