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
from bayplan.framework.api.plugin_error import PluginFault, exception_text
from bayplan.framework.api.status import Code, Status
from bayplan.framework.equivalence.bounded_cache import Kept, Places, Shelf
from bayplan.framework.equivalence.class_evaluation import ClassEvaluation
from bayplan.framework.equivalence.plugin_evaluation import EvaluationCounter, PluginEvaluation
from bayplan.framework.equivalence.plugin_role import PluginRole
from bayplan.framework.equivalence.weighted_scores import NotShareable
from bayplan.framework.runtime.plugin_call import PLUGIN_EXCEPTIONS, PluginCaller, plugin_traceback
from bayplan.framework.runtime.profile import Profile
from bayplan.objects.resource import DeviceClass
from bayplan.snapshot import PodInfo
from bayplan.snapshot.pod_info import template_key

log = logging.getLogger(__name__)

MAX_CLASSES = 256
_MAX_TEMPLATES = 256
"""Forgotten all at once, and long before a shelf forgets a key that was not asked for: each new look asks for one."""


class EquivalenceClass:
    """What is known of a pod beforehand: the place of each plugin's part, and of all of them together."""

    __slots__ = ("class_slot", "current_slot", "evaluation_slots", "owner")

    def __init__(
        self,
        parts: tuple[Kept[PluginEvaluation] | None, ...],
        together: Kept[ClassEvaluation] | None,
        home: EvaluationCounter,
    ) -> None:
        self.evaluation_slots = parts  # None: the plugin is asked about this pod alone
        self.class_slot = together  # None: so is the profile
        self.current_slot = together  # where it stands now: with pods that differ where plugins sit out
        self.owner = home  # whose it is: a profile may have been built anew since


class EquivalenceClasses:
    """What pods of one profile share."""

    def __init__(self, profile: Profile, boundary: PluginCaller, limit: int = MAX_CLASSES) -> None:
        self._boundary = boundary
        self._name = profile.scheduler_name
        points = {point: profile.at(point) for point in (PRE_FILTER, FILTER, PRE_SCORE, SCORE)}
        asked = {plugin.name: plugin for plugins in points.values() for plugin in plugins}
        extends = {
            name: frozenset(point.key for point, plugins in points.items() if plugin in plugins)
            for name, plugin in asked.items()
        }
        weights = dict(profile.weights)
        self._roles = [PluginRole(plugin, extends[name], weights.get(name, 0)) for name, plugin in asked.items()]
        order = {name: number for number, name in enumerate(asked)}
        self._filters = [order[plugin.name] for plugin in points[FILTER]]
        self._scores = [order[plugin.name] for plugin in points[SCORE]]
        self._restless = [number for number, role in enumerate(self._roles) if role.signs_anew]
        # Where a plugin takes back how it sees a pod, those who stand for others are looked for by the pod's own kind.
        self._sitting = [
            number
            for number, role in enumerate(self._roles)
            if role.has_signature and role.sits_out is not None and not self._restless
        ]
        self._quiet_roles = {
            number: self._roles[number].as_not_applicable(extends[self._roles[number].name]) for number in self._sitting
        }
        self._usable = all(role.scores_tables for role in self._roles if role.scores)
        self._limit = limit
        self._clock = EvaluationCounter()
        self._revision = 0
        self._attempt = 0
        self.full_evaluations: Counter[str] = Counter()  # why pods were not helped by what others know
        self._complained: set[str] = set()
        self._parts: list[Shelf[PluginEvaluation]] = [Shelf(limit) for _ in self._roles]
        # Of plugins of ours it is known that they never look at who a pod is, save those that take their word back.
        self._particular = [
            number
            for number, role in enumerate(self._roles)
            if role.has_signature and (role.is_external or role.signs_anew)
        ]
        self._looks: dict[Hashable, tuple[int, tuple[object, ...], Places]] = {}
        self._standings: Shelf[ClassEvaluation] = Shelf(limit)

    def __len__(self) -> int:
        """How many kinds of pod are kept."""
        return len(self._standings)

    def class_of(self, info: PodInfo) -> EquivalenceClass:
        """The kind of a pod, found out once a pod and set of device classes, and when a plugin takes its word back."""
        revision: int
        kind: EquivalenceClass | None
        revision, kind = info.equivalence_classes.get(self._name, (-1, None))
        if (
            kind is None
            or revision != self._revision
            or kind.owner is not self._clock
            or (self._restless and self._signature_changed(kind, info))
        ):
            kind = self._sign(info)
            info.equivalence_classes[self._name] = (self._revision, kind)
        return kind

    def _sign(self, info: PodInfo) -> EquivalenceClass:
        """Pods of one template follow each other: only who may tell them apart is asked about the second."""
        meta, look = info.pod.metadata, template_key(info.pod)
        name = (meta.namespace, frozenset(meta.labels.items()))
        known = self._looks.get(name)
        if known is None or known[0] != self._revision or known[1] != look:
            places = self._sign_with_all_plugins(info)
            if len(self._looks) >= _MAX_TEMPLATES:
                self._looks.clear()
            self._looks[name] = self._revision, look, places
        elif self._particular:
            asked = list(known[2])
            for number in self._particular:
                asked[number] = self._slot_of(self._roles[number], self._parts[number], info)
            places = tuple(asked)
        else:
            places = known[2]
        return EquivalenceClass(places, None if None in places else self._standings.slot(places), self._clock)

    def _sign_with_all_plugins(self, info: PodInfo) -> Places:
        roles = zip(self._roles, self._parts, strict=True)
        return tuple([self._slot_of(role, shelf, info) if role.has_signature else None for role, shelf in roles])

    def _signature_changed(self, kind: EquivalenceClass, info: PodInfo) -> bool:
        """Whether a plugin that says more than once how it sees a pod sees it differently now."""
        for number in self._restless:
            if self._slot_of(self._roles[number], self._parts[number], info) is not kind.evaluation_slots[number]:
                return True
        return False

    def _check_representatives(self, kind: EquivalenceClass) -> None:
        """Let go of answers that were found out about a pod which is seen differently by now: it speaks for itself."""
        together = kind.class_slot
        for number in self._restless:
            kept = kind.evaluation_slots[number]
            if kept is None:
                continue
            part, shared = kept.value, None if together is None else together.value
            if part is not None and not self._represents(kept, number, part):
                self._parts[number].drop(kept)
            elif shared is not None and shared.evaluation_of(number) is part:
                continue  # the same founder, who was asked just now
            if (
                together is not None
                and shared is not None
                and not self._represents(kept, number, shared.evaluation_of(number))
            ):
                self._standings.drop(together)

    def _represents(self, kept: Kept[PluginEvaluation], number: int, part: PluginEvaluation) -> bool:
        return self._slot_of(self._roles[number], self._parts[number], part.cycle.info) is kept

    def _slot_of(
        self, role: PluginRole, shelf: Shelf[PluginEvaluation], info: PodInfo
    ) -> Kept[PluginEvaluation] | None:
        """Where the plugin's answers about such pods are; None where it is asked about this pod alone."""
        try:
            sign = role.plugin.signature
            signature = (
                self._boundary.call_timed(role.plugin, SIGNATURE, sign, info.pod)
                if role.is_external
                else sign(info.pod)
            )
            return None if signature is None else shelf.slot(signature)
        except PLUGIN_EXCEPTIONS as fault:
            self._log_once(f"signature of plugin {role.name}", fault)
            return None

    def _log_once(self, about: str, fault: BaseException) -> None:
        """Sharing is no more than a shortcut, so whatever stands in its way is told once and costs nothing else."""
        if about not in self._complained:
            self._complained.add(about)
            trace = plugin_traceback(fault)
            log.warning("%s failed; pods are asked about one by one instead", about, exc_info=trace)

    def class_evaluation(self, cycle: Cycle) -> ClassEvaluation | None:
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
        kind = self.class_of(cycle.info)
        if self._restless:
            self._check_representatives(kind)
        try:
            return self._refreshed(kind, cycle)
        except NotShareable:
            self.full_evaluations[NotShareable.__name__] += 1
            if cycle.pre_filter_answers is None:
                cycle.reset_state()
            return None
        except PluginFault as fault:  # a full attempt finds out whether it matters, and says so
            self.full_evaluations[type(fault).__name__] += 1
            self._drop(kind)
            cycle.reset_state()
            if fault.point == DEPENDS_ON.key:
                self._log_once(f"{DEPENDS_ON.key} of plugin {fault.plugin}", fault.__cause__ or fault)
            else:
                cycle.plugin_error = fault
            return None
        except PLUGIN_EXCEPTIONS as fault:
            self.full_evaluations[type(fault).__name__] += 1
            self._log_once(f"sharing answers ({type(fault).__name__}: {exception_text(fault)})", fault)
            self._drop(kind)
            cycle.reset_state()
            return None
        except BaseException:  # somebody interrupts: nothing that is half done is kept
            self._drop(kind)
            raise

    def _refreshed(self, kind: EquivalenceClass, cycle: Cycle) -> ClassEvaluation:
        met: dict[int, PluginEvaluation] = {}  # parts of this pod's that were looked at or made already
        quiet = self._not_applicable_plugins(kind, cycle, met) if self._sitting and kind.class_slot is not None else ()
        together = kind.class_slot
        if quiet:
            together = self._standings.slot(
                tuple([None if n in quiet else k for n, k in enumerate(kind.evaluation_slots)])
            )
        kind.current_slot = together
        standing = None if together is None else together.value
        if together is not None and standing is not None and standing.snapshot is cycle.snapshot:
            standing.refresh()
            together.last_used = self._attempt
            return standing
        parts, new = [], []
        for number, kept in enumerate(kind.evaluation_slots):
            part = met.get(number) or (None if kept is None else kept.value)
            if number in quiet:
                part = PluginEvaluation(
                    self._quiet_roles[number], Cycle(cycle.info, cycle.snapshot), self._boundary, self._clock
                )
            elif part is None or part.cycle.snapshot is not cycle.snapshot:
                part = self._new_part(number, kept, cycle)
            if not part.is_evaluated:
                new.append(part)
            parts.append(part)
        self._pre_filter(new, cycle)
        for kept in kind.evaluation_slots:
            if kept is not None:
                kept.last_used = self._attempt
        filters, scores = [parts[number] for number in self._filters], [parts[number] for number in self._scores]
        once = together is None or not together.seen_before
        standing = ClassEvaluation(cycle.snapshot, parts, filters, scores, self._clock, once=once)
        if together is not None:
            self._standings.store(together, standing)
        return standing

    def _not_applicable_plugins(
        self, kind: EquivalenceClass, cycle: Cycle, met: dict[int, PluginEvaluation]
    ) -> list[int]:
        """The plugins that have nothing to say about this pod now, by number."""
        quiet = []
        for number in self._sitting:
            kept = kind.evaluation_slots[number]
            if kept is None:
                continue
            part = kept.value
            if part is None or part.cycle.snapshot is not cycle.snapshot:
                part = met[number] = self._new_part(number, kept, cycle)
            kept.last_used = self._attempt
            if part.is_still_not_applicable():
                quiet.append(number)
        return quiet

    @staticmethod
    def _pre_filter(parts: Sequence[PluginEvaluation], cycle: Cycle) -> None:
        """Ask the PreFilters of new parts before any filter.

        Who narrows the nodes or rejects the pod sends it the long way, which takes over what was said: nobody is asked
        twice. Plugins that can tell at once that they have nothing to say are spared the question.
        """
        asked: list[PluginEvaluation] = []
        for part in parts:
            if not part.role.pre_filters or part.role.sits_out is not None:
                continue
            answer = part.pre_filter()
            asked.append(part)
            if not isinstance(answer, Status) or not (answer.ok or answer.code is Code.SKIP):
                cycle.pre_filter_answers = {each.role.name: each.take_pre_filter_answer() for each in asked}
                for each in asked:
                    if not each.unshared:
                        cycle.merge_state(each.cycle)
                raise NotShareable

    def _new_part(self, number: int, kept: Kept[PluginEvaluation] | None, cycle: Cycle) -> PluginEvaluation:
        role = self._roles[number]
        if kept is None:
            return PluginEvaluation(role, cycle, self._boundary, self._clock, own=True)
        part = PluginEvaluation(role, Cycle(cycle.info, cycle.snapshot), self._boundary, self._clock)
        self._parts[number].store(kept, part)
        return part

    def _drop(self, kind: EquivalenceClass) -> None:
        for place in (kind.class_slot, kind.current_slot):
            if place is not None:
                self._standings.drop(place)
        for shelf, kept in zip(self._parts, kind.evaluation_slots, strict=True):
            if kept is not None:
                shelf.drop(kept)
