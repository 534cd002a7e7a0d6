"""Equivalence classes: pods that all plugins treat alike share evaluations.

Evaluations are shared on two levels. Pods with an equal `signature` of one plugin share that plugin's answers, a
`PluginEvaluation`. Pods with equal signatures of all plugins share the merged result, a `ClassEvaluation`. So a pod
with unique resource requests still shares the evaluation of taints, images and affinities. A plugin without a
signature, or with signature None, may read anything of a pod: it is evaluated in full for each pod, and the other
plugins still share. An evaluation is stored when its key occurs for the second time. Caches are bounded: the least
recently used evaluation goes first.

A plugin that skips the whole attempt for a pod (`not_applicable`) treats all such pods alike, whatever their signatures
are. Pods that it could distinguish by their labels stay in one class until a pod has an affinity to labels.
`not_applicable` is called on the evaluation of the pod's own signature, which follows the plugin's dependencies. The
pods then share an evaluation without answers that belongs to no signature.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable, Sequence

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.extension_points import DEPENDS_ON, FILTER, PRE_FILTER, PRE_SCORE, SCORE, SIGNATURE
from bayplan.framework.api.plugin_error import PluginFault, exception_text
from bayplan.framework.api.status import Code, Status
from bayplan.framework.equivalence.bounded_cache import BoundedCache, CacheSlot, EvaluationSlots
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
"""All templates are dropped at once, long before a cache drops an unused key: each new template adds one key."""


class EquivalenceClass:
    """The cache slots of a pod: one for each plugin evaluation and one for the class evaluation."""

    __slots__ = ("class_slot", "counter", "current_slot", "evaluation_slots")

    def __init__(
        self,
        evaluation_slots: tuple[CacheSlot[PluginEvaluation] | None, ...],
        class_slot: CacheSlot[ClassEvaluation] | None,
        counter: EvaluationCounter,
    ) -> None:
        self.evaluation_slots = evaluation_slots  # None: the plugin is evaluated for this pod alone
        self.class_slot = class_slot  # None: the whole profile is evaluated for this pod alone
        self.current_slot = class_slot  # differs from class_slot while plugins skip the pod
        self.counter = counter  # identifies the classes that built this one: the profile may have been rebuilt since


class EquivalenceClasses:
    """The evaluations that pods of one profile share."""

    def __init__(self, profile: Profile, caller: PluginCaller, limit: int = MAX_CLASSES) -> None:
        self._caller = caller
        self._scheduler_name = profile.scheduler_name
        points = {point: profile.at(point) for point in (PRE_FILTER, FILTER, PRE_SCORE, SCORE)}
        plugins_by_name = {plugin.name: plugin for plugins in points.values() for plugin in plugins}
        extends = {
            name: frozenset(point.key for point, plugins in points.items() if plugin in plugins)
            for name, plugin in plugins_by_name.items()
        }
        weights = dict(profile.weights)
        self._roles = [
            PluginRole(plugin, extends[name], weights.get(name, 0)) for name, plugin in plugins_by_name.items()
        ]
        order = {name: number for number, name in enumerate(plugins_by_name)}
        self._filters = [order[plugin.name] for plugin in points[FILTER]]
        self._scores = [order[plugin.name] for plugin in points[SCORE]]
        self._changing_signatures = [number for number, role in enumerate(self._roles) if role.signature_may_change]
        # If a signature may change, representatives are found by the pod's own class, so no plugin may be skipped.
        self._skipping = [
            number
            for number, role in enumerate(self._roles)
            if role.has_signature and role.not_applicable is not None and not self._changing_signatures
        ]
        self._not_applicable_roles = {
            number: self._roles[number].as_not_applicable(extends[self._roles[number].name])
            for number in self._skipping
        }
        self._usable = all(role.scores_tables for role in self._roles if role.scores)
        self._limit = limit
        self._counter = EvaluationCounter()
        self._revision = 0
        self._attempt = 0
        self.full_evaluations: Counter[str] = Counter()  # why attempts were evaluated in full
        self._logged: set[str] = set()
        self._evaluation_caches: list[BoundedCache[PluginEvaluation]] = [BoundedCache(limit) for _ in self._roles]
        # Shipped plugins never read the identity of a pod, except plugins whose signature may change.
        self._always_signed = [
            number
            for number, role in enumerate(self._roles)
            if role.has_signature and (role.is_external or role.signature_may_change)
        ]
        self._templates: dict[Hashable, tuple[int, tuple[object, ...], EvaluationSlots]] = {}
        self._class_evaluations: BoundedCache[ClassEvaluation] = BoundedCache(limit)

    def __len__(self) -> int:
        """Number of class evaluations in the cache."""
        return len(self._class_evaluations)

    def class_of(self, info: PodInfo) -> EquivalenceClass:
        """Return the class of a pod.

        It is computed once for each pod and revision of the device classes, and again when a signature changes.
        """
        revision: int
        pod_class: EquivalenceClass | None
        revision, pod_class = info.equivalence_classes.get(self._scheduler_name, (-1, None))
        if (
            pod_class is None
            or revision != self._revision
            or pod_class.counter is not self._counter
            or (self._changing_signatures and self._signature_changed(pod_class, info))
        ):
            pod_class = self._sign(info)
            info.equivalence_classes[self._scheduler_name] = (self._revision, pod_class)
        return pod_class

    def _sign(self, info: PodInfo) -> EquivalenceClass:
        """Build the class of a pod.

        Pods of one template are frequent: only external and changing signatures are called again.
        """
        meta, template = info.pod.metadata, template_key(info.pod)
        name = (meta.namespace, frozenset(meta.labels.items()))
        template_slots = self._templates.get(name)
        if template_slots is None or template_slots[0] != self._revision or template_slots[1] != template:
            slots = self._sign_with_all_plugins(info)
            if len(self._templates) >= _MAX_TEMPLATES:
                self._templates.clear()
            self._templates[name] = self._revision, template, slots
        elif self._always_signed:
            signed = list(template_slots[2])
            for number in self._always_signed:
                signed[number] = self._slot(self._roles[number], self._evaluation_caches[number], info)
            slots = tuple(signed)
        else:
            slots = template_slots[2]
        return EquivalenceClass(slots, None if None in slots else self._class_evaluations.slot(slots), self._counter)

    def _sign_with_all_plugins(self, info: PodInfo) -> EvaluationSlots:
        roles = zip(self._roles, self._evaluation_caches, strict=True)
        return tuple([self._slot(role, cache, info) if role.has_signature else None for role, cache in roles])

    def _signature_changed(self, pod_class: EquivalenceClass, info: PodInfo) -> bool:
        """Whether a plugin whose signature may change returns another signature now."""
        for number in self._changing_signatures:
            if (
                self._slot(self._roles[number], self._evaluation_caches[number], info)
                is not pod_class.evaluation_slots[number]
            ):
                return True
        return False

    def _check_representatives(self, pod_class: EquivalenceClass) -> None:
        """Drop evaluations of a representative whose signature has changed: it now represents another class."""
        class_slot = pod_class.class_slot
        for number in self._changing_signatures:
            slot = pod_class.evaluation_slots[number]
            if slot is None:
                continue
            evaluation, shared = slot.value, None if class_slot is None else class_slot.value
            if evaluation is not None and not self._is_representative(slot, number, evaluation):
                self._evaluation_caches[number].drop(slot)
            elif shared is not None and shared.plugin_evaluation(number) is evaluation:
                continue  # the same representative, checked above
            if (
                class_slot is not None
                and shared is not None
                and not self._is_representative(slot, number, shared.plugin_evaluation(number))
            ):
                self._class_evaluations.drop(class_slot)

    def _is_representative(self, slot: CacheSlot[PluginEvaluation], number: int, evaluation: PluginEvaluation) -> bool:
        return self._slot(self._roles[number], self._evaluation_caches[number], evaluation.cycle.info) is slot

    def _slot(
        self, role: PluginRole, cache: BoundedCache[PluginEvaluation], info: PodInfo
    ) -> CacheSlot[PluginEvaluation] | None:
        """Return the slot of the plugin's evaluation for this pod. None: the plugin is evaluated for this pod alone."""
        try:
            sign = role.plugin.signature
            signature = (
                self._caller.call_timed(role.plugin, SIGNATURE, sign, info.pod) if role.is_external else sign(info.pod)
            )
            return None if signature is None else cache.slot(signature)
        except PLUGIN_EXCEPTIONS as fault:
            self._log_once(f"signature of plugin {role.name}", fault)
            return None

    def _log_once(self, about: str, fault: BaseException) -> None:
        """Log a failure once. Sharing only saves time, so a failure has no other effect."""
        if about not in self._logged:
            self._logged.add(about)
            trace = plugin_traceback(fault)
            log.warning("%s failed; this plugin is evaluated for every pod separately", about, exc_info=trace)

    def class_evaluation(self, cycle: Cycle) -> ClassEvaluation | None:
        """Return the updated evaluation of the pod's class, or None if the attempt must be evaluated in full."""
        if not self._usable:
            return None
        revision = cycle.snapshot.catalog.revision(DeviceClass)
        if revision != self._revision:  # signatures read device classes, so all of them are stale
            self._revision = revision
            self._class_evaluations.clear()
            for cache in self._evaluation_caches:
                cache.clear()
        self._attempt += 1
        pod_class = self.class_of(cycle.info)
        if self._changing_signatures:
            self._check_representatives(pod_class)
        try:
            return self._refresh(pod_class, cycle)
        except NotShareable:
            self.full_evaluations[NotShareable.__name__] += 1
            if cycle.pre_filter_results is None:
                cycle.reset_state()
            return None
        except PluginFault as fault:  # the full attempt finds the fault again, if it matters, and reports it
            self.full_evaluations[type(fault).__name__] += 1
            self._drop(pod_class)
            cycle.reset_state()
            if fault.point == DEPENDS_ON.key:
                self._log_once(f"{DEPENDS_ON.key} of plugin {fault.plugin}", fault.__cause__ or fault)
            else:
                cycle.plugin_error = fault
            return None
        except PLUGIN_EXCEPTIONS as fault:
            self.full_evaluations[type(fault).__name__] += 1
            self._log_once(f"sharing answers ({type(fault).__name__}: {exception_text(fault)})", fault)
            self._drop(pod_class)
            cycle.reset_state()
            return None
        except BaseException:  # interrupted: drop incomplete evaluations
            self._drop(pod_class)
            raise

    def _refresh(self, pod_class: EquivalenceClass, cycle: Cycle) -> ClassEvaluation:
        created: dict[int, PluginEvaluation] = {}  # evaluations of this pod that were created here
        not_applicable = (
            self._not_applicable_plugins(pod_class, cycle, created)
            if self._skipping and pod_class.class_slot is not None
            else ()
        )
        class_slot = pod_class.class_slot
        if not_applicable:
            class_slot = self._class_evaluations.slot(
                tuple(
                    [
                        None if number in not_applicable else slot
                        for number, slot in enumerate(pod_class.evaluation_slots)
                    ]
                )
            )
        pod_class.current_slot = class_slot
        class_evaluation = None if class_slot is None else class_slot.value
        if class_slot is not None and class_evaluation is not None and class_evaluation.snapshot is cycle.snapshot:
            class_evaluation.refresh()
            class_slot.last_used = self._attempt
            return class_evaluation
        evaluations, new = [], []
        for number, slot in enumerate(pod_class.evaluation_slots):
            evaluation = created.get(number) or (None if slot is None else slot.value)
            if number in not_applicable:
                evaluation = PluginEvaluation(
                    self._not_applicable_roles[number], Cycle(cycle.info, cycle.snapshot), self._caller, self._counter
                )
            elif evaluation is None or evaluation.cycle.snapshot is not cycle.snapshot:
                evaluation = self._new_evaluation(number, slot, cycle)
            if not evaluation.is_evaluated:
                new.append(evaluation)
            evaluations.append(evaluation)
        self._pre_filter(new, cycle)
        for slot in pod_class.evaluation_slots:
            if slot is not None:
                slot.last_used = self._attempt
        filters = [evaluations[number] for number in self._filters]
        scores = [evaluations[number] for number in self._scores]
        single_use = class_slot is None or not class_slot.seen_before
        class_evaluation = ClassEvaluation(
            cycle.snapshot, evaluations, filters, scores, self._counter, single_use=single_use
        )
        if class_slot is not None:
            self._class_evaluations.store(class_slot, class_evaluation)
        return class_evaluation

    def _not_applicable_plugins(
        self, pod_class: EquivalenceClass, cycle: Cycle, created: dict[int, PluginEvaluation]
    ) -> list[int]:
        """Return the numbers of the plugins that have nothing to evaluate for this pod now."""
        not_applicable = []
        for number in self._skipping:
            slot = pod_class.evaluation_slots[number]
            if slot is None:
                continue
            evaluation = slot.value
            if evaluation is None or evaluation.cycle.snapshot is not cycle.snapshot:
                evaluation = created[number] = self._new_evaluation(number, slot, cycle)
            slot.last_used = self._attempt
            if evaluation.is_still_not_applicable():
                not_applicable.append(number)
        return not_applicable

    @staticmethod
    def _pre_filter(evaluations: Sequence[PluginEvaluation], cycle: Cycle) -> None:
        """Call the PreFilter plugins of new evaluations before any filter.

        A plugin that narrows the nodes or rejects the pod forces a full attempt, which takes over the answers. No
        plugin is called twice. Plugins with `not_applicable` are not called here.
        """
        pre_filtered: list[PluginEvaluation] = []
        for evaluation in evaluations:
            if not evaluation.role.pre_filters or evaluation.role.not_applicable is not None:
                continue
            result = evaluation.pre_filter()
            pre_filtered.append(evaluation)
            if not isinstance(result, Status) or not (result.ok or result.code is Code.SKIP):
                cycle.pre_filter_results = {each.role.name: each.take_pre_filter_result() for each in pre_filtered}
                for each in pre_filtered:
                    if not each.unshared:
                        cycle.merge_state(each.cycle)
                raise NotShareable

    def _new_evaluation(self, number: int, slot: CacheSlot[PluginEvaluation] | None, cycle: Cycle) -> PluginEvaluation:
        role = self._roles[number]
        if slot is None:
            return PluginEvaluation(role, cycle, self._caller, self._counter, unshared=True)
        evaluation = PluginEvaluation(role, Cycle(cycle.info, cycle.snapshot), self._caller, self._counter)
        self._evaluation_caches[number].store(slot, evaluation)
        return evaluation

    def _drop(self, pod_class: EquivalenceClass) -> None:
        for class_slot in (pod_class.class_slot, pod_class.current_slot):
            if class_slot is not None:
                self._class_evaluations.drop(class_slot)
        for cache, slot in zip(self._evaluation_caches, pod_class.evaluation_slots, strict=True):
            if slot is not None:
                cache.drop(slot)
