"""Equivalence classes: pods that plugins treat alike share what was found out about them.

Sharing happens twice. Pods of which one plugin says the same (`signature`) share that plugin's answers, a `Part`; pods
of which all plugins say the same share everything put together, a `Standing`. So a pod that differs from all others in
what it asks for still finds its taints, images and affinities answered. A plugin that does not sign, or that signs
None, may look at anything of a pod and is asked in full about each; the others are shared nevertheless. Whatever came
once only is not kept: it is kept when it comes again. Tables are bounded: who was not asked for longest goes first.

A plugin that sits out of the attempt for a pod (`sits_out`) says the same of all such pods, whatever it signs: nothing.
Pods that it could tell apart by their labels, if only anybody had an affinity to labels, stand together until somebody
has. Whether it sits out is asked of the part that belongs to the pod's own signature, which follows what the plugin
depends on; what the pods then share is a part of nobody's, which never says anything.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable, Sequence

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.extension_points import (
    DEPENDS_ON,
    FILTER,
    PRE_FILTER,
    PRE_SCORE,
    SCORE,
    SIGNATURE,
)
from bayplan.framework.api.plugin_error import PluginFault, words_of_fault
from bayplan.framework.api.status import Code, Status
from bayplan.framework.equivalence.bounded_cache import Kept, Places, Shelf
from bayplan.framework.equivalence.class_evaluation import Standing
from bayplan.framework.equivalence.plugin_evaluation import EvaluationClock, Part
from bayplan.framework.equivalence.plugin_role import Role
from bayplan.framework.equivalence.weighted_scores import CannotShare
from bayplan.framework.runtime.plugin_call import FAULTS, Boundary, trace_from_outside
from bayplan.framework.runtime.profile import Profile
from bayplan.objects.resource import DeviceClass
from bayplan.snapshot import PodInfo
from bayplan.snapshot.pod_info import look_of

log = logging.getLogger(__name__)

MOST_KEPT = 256
_REMEMBERED_LOOKS = 256
"""Forgotten all at once, and long before a shelf forgets a key that was not asked for: each new look asks for one."""


class Kind:
    """What is known of a pod beforehand: the place of each plugin's part, and of all of them together."""

    __slots__ = ("home", "parts", "standing_at", "together")

    def __init__(
        self, parts: tuple[Kept[Part] | None, ...], together: Kept[Standing] | None, home: EvaluationClock
    ) -> None:
        self.parts = parts  # None: the plugin is asked about this pod alone
        self.together = together  # None: so is the profile
        self.standing_at = together  # where it stands now: with pods that differ where plugins sit out
        self.home = home  # whose it is: a profile may have been built anew since


class Classes:
    """What pods of one profile share."""

    def __init__(self, profile: Profile, boundary: Boundary, limit: int = MOST_KEPT) -> None:
        self._boundary = boundary
        self._name = profile.scheduler_name
        points = {point: profile.at(point) for point in (PRE_FILTER, FILTER, PRE_SCORE, SCORE)}
        asked = {plugin.name: plugin for plugins in points.values() for plugin in plugins}
        extends = {
            name: frozenset(point.key for point, plugins in points.items() if plugin in plugins)
            for name, plugin in asked.items()
        }
        weights = dict(profile.weights)
        self._roles = [Role(plugin, extends[name], weights.get(name, 0)) for name, plugin in asked.items()]
        order = {name: number for number, name in enumerate(asked)}
        self._filters = [order[plugin.name] for plugin in points[FILTER]]
        self._scores = [order[plugin.name] for plugin in points[SCORE]]
        self._restless = [number for number, role in enumerate(self._roles) if role.signs_anew]
        # Where a plugin takes back how it sees a pod, those who stand for others are looked for by the pod's own kind.
        self._sitting = [
            number
            for number, role in enumerate(self._roles)
            if role.signs and role.sits_out is not None and not self._restless
        ]
        self._quiet_roles = {
            number: self._roles[number].sitting_out(extends[self._roles[number].name]) for number in self._sitting
        }
        self._usable = all(role.scores_tables for role in self._roles if role.scores)
        self._limit = limit
        self._clock = EvaluationClock()
        self._revision = 0
        self._attempt = 0
        self.long_ways: Counter[str] = Counter()  # why pods were not helped by what others know
        self._complained: set[str] = set()
        self._parts: list[Shelf[Part]] = [Shelf(limit) for _ in self._roles]
        # Of plugins of ours it is known that they never look at who a pod is, save those that take their word back.
        self._particular = [
            number for number, role in enumerate(self._roles) if role.signs and (role.outside or role.signs_anew)
        ]
        self._looks: dict[Hashable, tuple[int, tuple[object, ...], Places]] = {}
        self._standings: Shelf[Standing] = Shelf(limit)

    def __len__(self) -> int:
        """How many kinds of pod are kept."""
        return len(self._standings)

    def kind_of(self, info: PodInfo) -> Kind:
        """The kind of a pod, found out once a pod and set of device classes, and when a plugin takes its word back."""
        revision: int
        kind: Kind | None
        revision, kind = info.kinds.get(self._name, (-1, None))
        if (
            kind is None
            or revision != self._revision
            or kind.home is not self._clock
            or (self._restless and self._differs(kind, info))
        ):
            kind = self._signed(info)
            info.kinds[self._name] = (self._revision, kind)
        return kind

    def _signed(self, info: PodInfo) -> Kind:
        """Pods of one template follow each other: only who may tell them apart is asked about the second."""
        meta, look = info.pod.metadata, look_of(info.pod)
        name = (meta.namespace, frozenset(meta.labels.items()))
        known = self._looks.get(name)
        if known is None or known[0] != self._revision or known[1] != look:
            places = self._signed_by_all(info)
            if len(self._looks) >= _REMEMBERED_LOOKS:
                self._looks.clear()
            self._looks[name] = self._revision, look, places
        elif self._particular:
            asked = list(known[2])
            for number in self._particular:
                asked[number] = self._place(self._roles[number], self._parts[number], info)
            places = tuple(asked)
        else:
            places = known[2]
        return Kind(places, None if None in places else self._standings.place(places), self._clock)

    def _signed_by_all(self, info: PodInfo) -> Places:
        roles = zip(self._roles, self._parts, strict=True)
        return tuple([self._place(role, shelf, info) if role.signs else None for role, shelf in roles])

    def _differs(self, kind: Kind, info: PodInfo) -> bool:
        """Whether a plugin that says more than once how it sees a pod sees it differently now."""
        for number in self._restless:
            if self._place(self._roles[number], self._parts[number], info) is not kind.parts[number]:
                return True
        return False

    def _check_founders(self, kind: Kind) -> None:
        """Let go of answers that were found out about a pod which is seen differently by now: it speaks for itself."""
        together = kind.together
        for number in self._restless:
            kept = kind.parts[number]
            if kept is None:
                continue
            part, shared = kept.value, None if together is None else together.value
            if part is not None and not self._speaks_for(kept, number, part):
                self._parts[number].drop(kept)
            elif shared is not None and shared.part(number) is part:
                continue  # the same founder, who was asked just now
            if together is not None and shared is not None and not self._speaks_for(kept, number, shared.part(number)):
                self._standings.drop(together)

    def _speaks_for(self, kept: Kept[Part], number: int, part: Part) -> bool:
        return self._place(self._roles[number], self._parts[number], part.cycle.info) is kept

    def _place(self, role: Role, shelf: Shelf[Part], info: PodInfo) -> Kept[Part] | None:
        """Where the plugin's answers about such pods are; None where it is asked about this pod alone."""
        try:
            sign = role.plugin.signature
            signature = self._boundary.timed(role.plugin, SIGNATURE, sign, info.pod) if role.outside else sign(info.pod)
            return None if signature is None else shelf.place(signature)
        except FAULTS as fault:
            self._complain(f"signature of plugin {role.name}", fault)
            return None

    def _complain(self, about: str, fault: BaseException) -> None:
        """Sharing is no more than a shortcut, so whatever stands in its way is told once and costs nothing else."""
        if about not in self._complained:
            self._complained.add(about)
            trace = trace_from_outside(fault)
            log.warning("%s failed; pods are asked about one by one instead", about, exc_info=trace)

    def standing(self, cycle: Cycle) -> Standing | None:
        """Where pods of this kind stand now; None where the attempt has to take the long way."""
        if not self._usable:
            return None
        revision = cycle.snapshot.catalog.revision(DeviceClass)
        if revision != self._revision:  # signatures look at the classes of devices, so all of them are out of date
            self._revision = revision
            self._standings.clear()
            for shelf in self._parts:
                shelf.clear()
        self._attempt += 1
        kind = self.kind_of(cycle.info)
        if self._restless:
            self._check_founders(kind)
        try:
            return self._caught_up(kind, cycle)
        except CannotShare:
            self.long_ways[CannotShare.__name__] += 1
            if cycle.answered is None:
                cycle.start_over()
            return None
        except PluginFault as fault:  # a full attempt finds out whether it matters, and says so
            self.long_ways[type(fault).__name__] += 1
            self._drop(kind)
            cycle.start_over()
            if fault.point == DEPENDS_ON.key:
                self._complain(f"{DEPENDS_ON.key} of plugin {fault.plugin}", fault.__cause__ or fault)
            else:
                cycle.failed = fault
            return None
        except FAULTS as fault:
            self.long_ways[type(fault).__name__] += 1
            self._complain(f"sharing answers ({type(fault).__name__}: {words_of_fault(fault)})", fault)
            self._drop(kind)
            cycle.start_over()
            return None
        except BaseException:  # somebody interrupts: nothing that is half done is kept
            self._drop(kind)
            raise

    def _caught_up(self, kind: Kind, cycle: Cycle) -> Standing:
        met: dict[int, Part] = {}  # parts of this pod's that were looked at or made already
        quiet = self._sit_out(kind, cycle, met) if self._sitting and kind.together is not None else ()
        together = kind.together
        if quiet:
            together = self._standings.place(tuple([None if n in quiet else k for n, k in enumerate(kind.parts)]))
        kind.standing_at = together
        standing = None if together is None else together.value
        if together is not None and standing is not None and standing.snapshot is cycle.snapshot:
            standing.refresh()
            together.used = self._attempt
            return standing
        parts, new = [], []
        for number, kept in enumerate(kind.parts):
            part = met.get(number) or (None if kept is None else kept.value)
            if number in quiet:
                part = Part(self._quiet_roles[number], Cycle(cycle.info, cycle.snapshot), self._boundary, self._clock)
            elif part is None or part.cycle.snapshot is not cycle.snapshot:
                part = self._new_part(number, kept, cycle)
            if not part.is_known:
                new.append(part)
            parts.append(part)
        self._pre_filter(new, cycle)
        for kept in kind.parts:
            if kept is not None:
                kept.used = self._attempt
        filters, scores = [parts[number] for number in self._filters], [parts[number] for number in self._scores]
        once = together is None or not together.met
        standing = Standing(cycle.snapshot, parts, filters, scores, self._clock, once=once)
        if together is not None:
            self._standings.keep(together, standing)
        return standing

    def _sit_out(self, kind: Kind, cycle: Cycle, met: dict[int, Part]) -> list[int]:
        """The plugins that have nothing to say about this pod now, by number."""
        quiet = []
        for number in self._sitting:
            kept = kind.parts[number]
            if kept is None:
                continue
            part = kept.value
            if part is None or part.cycle.snapshot is not cycle.snapshot:
                part = met[number] = self._new_part(number, kept, cycle)
            kept.used = self._attempt
            if part.still_sits_out():
                quiet.append(number)
        return quiet

    @staticmethod
    def _pre_filter(parts: Sequence[Part], cycle: Cycle) -> None:
        """Ask the PreFilters of new parts before any filter.

        Who narrows the nodes or rejects the pod sends it the long way, which takes over what was said: nobody is asked
        twice. Plugins that can tell at once that they have nothing to say are spared the question.
        """
        asked: list[Part] = []
        for part in parts:
            if not part.role.pre_filters or part.role.sits_out is not None:
                continue
            answer = part.pre_filter()
            asked.append(part)
            if not isinstance(answer, Status) or not (answer.ok or answer.code is Code.SKIP):
                cycle.answered = {each.role.name: each.take_answer() for each in asked}
                for each in asked:
                    if not each.own:
                        cycle.adopt(each.cycle)
                raise CannotShare

    def _new_part(self, number: int, kept: Kept[Part] | None, cycle: Cycle) -> Part:
        role = self._roles[number]
        if kept is None:
            return Part(role, cycle, self._boundary, self._clock, own=True)
        part = Part(role, Cycle(cycle.info, cycle.snapshot), self._boundary, self._clock)
        self._parts[number].keep(kept, part)
        return part

    def _drop(self, kind: Kind) -> None:
        for place in (kind.together, kind.standing_at):
            if place is not None:
                self._standings.drop(place)
        for shelf, kept in zip(self._parts, kind.parts, strict=True):
            if kept is not None:
                shelf.drop(kept)
