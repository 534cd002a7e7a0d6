"""State of the binders' lease in answers about pods that wait for the binder."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bayplan.explain.engine_dispatch import _lease_status
from bayplan.telemetry.answers import EXPIRED, FREE, HELD

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
LEASE = "kube-system/bayplan-binder"


def lease_spec(seconds_ago: float, *, lasts_s: int | None = 15) -> dict[str, Any]:
    at = NOON - timedelta(seconds=seconds_ago)
    spec: dict[str, Any] = {"holderIdentity": "b-1", "renewTime": at.isoformat()}
    return spec if lasts_s is None else {**spec, "leaseDurationSeconds": lasts_s}


@pytest.mark.parametrize(
    ("spec", "state", "sentence"),
    [
        pytest.param({}, FREE, f"no binder holds the lease {LEASE}; see whether `bayplan binder` runs", id="no holder"),
        pytest.param(
            {"holderIdentity": ""},
            FREE,
            f"no binder holds the lease {LEASE}; see whether `bayplan binder` runs",
            id="empty",
        ),
        pytest.param({"holderIdentity": "b-1"}, HELD, f"b-1 holds the lease {LEASE}", id="never lease_spec"),
        pytest.param(lease_spec(0), HELD, f"b-1 holds the lease {LEASE}", id="lease_spec now"),
        pytest.param(lease_spec(15), HELD, f"b-1 holds the lease {LEASE}", id="at its end"),
        pytest.param(
            lease_spec(18),
            EXPIRED,
            f"b-1 no longer holds the lease {LEASE}: it expired 3 s ago; see whether `bayplan binder` runs",
            id="expired",
        ),
        pytest.param(
            lease_spec(2, lasts_s=None),
            EXPIRED,
            f"b-1 no longer holds the lease {LEASE}: it expired 2 s ago; see whether `bayplan binder` runs",
            id="without a duration",
        ),
    ],
)
def test_the_state_of_the_lease(spec: dict[str, Any], state: str, sentence: str) -> None:
    found = _lease_status(LEASE, spec, NOON)
    assert (found.lease, found.state, found.sentence) == (LEASE, state, sentence)
    assert found.holder == spec.get("holderIdentity", "")
    assert (found.renewed_at is not None) is bool(spec.get("renewTime"))
