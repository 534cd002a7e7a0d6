"""The `resourcequota` plugin: keeps jobs Pending whose minimum would exceed a ResourceQuota of their namespace."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar

from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.diagnostics.invalid_amounts import AmountReader
from bayplan.batch.model.jobs import Job
from bayplan.batch.session.combine_rules import Vote
from bayplan.batch.session.session import Session
from bayplan.codec.quantity import Quantity, parse_quantity
from bayplan.objects.core import ResourceQuota
from bayplan.objects.meta import ResourceList

Quantities = Mapping[str, Quantity]


class ResourceQuotaPlugin:
    """Rejects a job whose minimum exceeds a quota of its namespace; jobs admitted earlier in the session count."""

    name = "resourcequota"
    takes: ClassVar[tuple[Argument, ...]] = ()

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments

    def on_session_open(self, session: Session) -> None:
        self._session = session
        self._admitted: dict[str, Quantities] = {}
        self._amounts: dict[str, tuple[Quantities, Quantities]] = {}
        self._quotas: dict[str, list[ResourceQuota]] = {}
        for quota in session.catalog.table(ResourceQuota).values():
            self._quotas.setdefault(quota.namespace, []).append(quota)
        session.add_job_enqueueable_fn(self.name, self._enqueueable)

    def _enqueueable(self, job: Job) -> Vote:
        given = job.min_resources_given
        if given is None:
            return Vote.PERMIT
        wanted = _read_quota(given)
        admitted = self._admitted.get(job.namespace, {})
        for quota in self._quotas.get(job.namespace, ()):
            hard, used = self._quota_amounts(quota)
            exceeded = [
                name
                for name, quantity in wanted.items()
                if name in hard and _sum_quantity(name, admitted, used).add(quantity).compare(hard[name]) > 0
            ]
            if exceeded:
                self._record_exceeded(job, exceeded, wanted, used, hard)
                return Vote.REJECT
        self._admitted[job.namespace] = {name: _sum_quantity(name, admitted, wanted) for name in {**admitted, **wanted}}
        return Vote.PERMIT

    def _quota_amounts(self, quota: ResourceQuota) -> tuple[Quantities, Quantities]:
        """Hard limits and usage of a quota. An unreadable amount limits nothing and is reported once per session."""
        found = self._amounts.get(quota.key)
        if found is None:
            reader = AmountReader(f"resource quota {quota.key}")
            hard, used = reader.read("status.hard", quota.status.hard), reader.read("status.used", quota.status.used)
            self._session.faults += reader.faults
            found = self._amounts[quota.key] = _read_quota(hard), _read_quota(used)
        return found

    def _record_exceeded(
        self, job: Job, names: Collection[str], wanted: Quantities, used: Quantities, hard: Quantities
    ) -> None:
        parts = [
            f"{label}: {', '.join(f'{name} {amounts[name]}' for name in names if name in amounts)}"
            for label, amounts in (("requested", wanted), ("used", used), ("limited", hard))
        ]
        text = f"resource quota insufficient, {', '.join(parts)}"
        self._session.record_event(job, "Normal", "Unschedulable", text)


def _read_quota(resources: ResourceList) -> Quantities:
    return {name: parse_quantity(text) for name, text in resources.items()}


def _sum_quantity(name: str, *amounts: Quantities) -> Quantity:
    total = Quantity()
    for each in amounts:
        if name in each:
            total = total.add(each[name])
    return total
