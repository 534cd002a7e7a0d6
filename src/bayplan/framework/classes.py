"""Equivalence classes: pods that every plugin treats alike share one `Standing`.

A pod's class key is what the plugins say of it (`signature`). A profile with a plugin that does not sign shares
nothing, because that plugin may look at anything of a pod; a signature of None takes the one pod out. The table is
bounded: the class that was not used for the longest time goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any

from bayplan.framework.boundary import Boundary
from bayplan.framework.cycle import Cycle
from bayplan.framework.points import FILTER, PRE_FILTER, PRE_SCORE, SCORE
from bayplan.framework.profile import Profile
from bayplan.framework.standing import Standing
from bayplan.objects.resource import DeviceClass
from bayplan.snapshot import PodInfo

MOST_CLASSES = 256
_REMEMBERED_KEYS = 4096


class Classes:
    """The standings of one profile."""

    def __init__(self, profile: Profile, boundary: Boundary, limit: int = MOST_CLASSES) -> None:
        self._boundary = boundary
        self._points = {point: profile.at(point) for point in (PRE_FILTER, FILTER, PRE_SCORE, SCORE)}
        self._name = profile.scheduler_name
        self._weights = dict(profile.weights)
        self._limit = limit
        self._revision = 0
        self._standings: OrderedDict[Hashable, Standing] = OrderedDict()
        self._met: OrderedDict[Hashable, None] = OrderedDict()  # kinds of pod that came once: one more makes a class
        asked: dict[str, Any] = {plugin.name: plugin for plugins in self._points.values() for plugin in plugins}
        self._signing = [plugin for plugin in asked.values() if hasattr(plugin, "signature")]
        # Who does not sign may look at anything of the pod, and a standing holds the answers about another one.
        self._usable = len(self._signing) == len(asked) and all(
            _whole_table(plugins, method)
            for plugins, method in (
                (self._points[FILTER], "filter_nodes"),
                (self._points[SCORE], "score_nodes"),
            )
        )

    def __len__(self) -> int:
        return len(self._standings)

    def key_of(self, info: PodInfo) -> Hashable | None:
        """The class of a pod; None for one that shares with nobody. Computed once a pod and set of device classes."""
        revision, key = info.class_keys.get(self._name, (-1, None))
        if revision != self._revision:
            key = self._signed(info) if self._usable else None
            info.class_keys[self._name] = (self._revision, key)
        return key

    def _signed(self, info: PodInfo) -> Hashable | None:
        parts = []
        for plugin in self._signing:
            part = plugin.signature(info.pod)
            if part is None:
                return None
            parts.append(part)
        return tuple(parts)

    def standing(self, cycle: Cycle) -> Standing | None:
        """The up-to-date standing of the pod's class; None where the attempt has to take the long way."""
        revision = cycle.snapshot.catalog.revision(DeviceClass)
        if revision != self._revision:  # signatures look at the classes of devices, so all of them are out of date
            self._revision = revision
            self._standings.clear()
        key = self.key_of(cycle.info)
        if key is None:
            return None
        try:
            return self._caught_up(key, cycle)
        except (Exception, SystemExit):
            # A plugin that cannot be shared, or one that broke: a full attempt asks it again and says what is wrong.
            self._standings.pop(key, None)
            return None

    def _caught_up(self, key: Hashable, cycle: Cycle) -> Standing | None:
        standing = self._standings.get(key)
        if standing is not None and standing.snapshot is cycle.snapshot:
            standing.refresh()
            self._standings.move_to_end(key)
            return standing
        if key not in self._met:  # a pod that is the only one of its kind is cheaper to evaluate on its own
            self._met[key] = None
            if len(self._met) > _REMEMBERED_KEYS:
                self._met.popitem(last=False)
            return None
        points = self._points
        fresh = Standing(
            Cycle(cycle.info, cycle.snapshot),
            points[PRE_FILTER],
            points[FILTER],
            points[PRE_SCORE],
            points[SCORE],
            self._weights,
            self._boundary,
        )
        self._standings[key] = fresh
        if len(self._standings) > self._limit:
            self._standings.popitem(last=False)
        return fresh


def _whole_table(plugins: Sequence[Any], method: str) -> bool:
    return all(hasattr(plugin, method) for plugin in plugins)
