from __future__ import annotations

import pytest

from bayplan.batch.plugins.resourcequota import ResourceQuotaPlugin
from bayplan.objects.core import ResourceQuota, ResourceQuotaStatus
from bayplan.objects.meta import ObjectMeta, ResourceList
from support.builders.batch import make_group, open_session, pod_group_messages


def quota(
    hard: ResourceList, used: ResourceList | None = None, *, name: str = "rq", namespace: str = "default"
) -> ResourceQuota:
    meta = ObjectMeta(name=name, namespace=namespace)
    return ResourceQuota(metadata=meta, status=ResourceQuotaStatus(hard=hard, used=used or {}))


@pytest.mark.parametrize(
    ("wanted", "quotas", "admitted"),
    [
        pytest.param({"cpu": "3"}, [], True, id="no-quota"),
        pytest.param(None, [quota({"cpu": "0"})], True, id="no-minimum"),
        pytest.param({"cpu": "3"}, [quota({"cpu": "3"})], True, id="fits-exactly"),
        pytest.param({"cpu": "3"}, [quota({"cpu": "2999m"})], False, id="above"),
        pytest.param({"cpu": "3"}, [quota({"cpu": "4"}, {"cpu": "2"})], False, id="already-used"),
        pytest.param({"cpu": "3"}, [quota({"requests.cpu": "1"})], True, id="another-name"),
        pytest.param({"requests.cpu": "3"}, [quota({"requests.cpu": "1"})], False, id="names-as-they-are"),
        pytest.param({"cpu": "3"}, [quota({"cpu": "1"}, namespace="other")], True, id="another-namespace"),
        pytest.param({"cpu": "3"}, [quota({"cpu": "9"}), quota({"cpu": "1"}, name="b")], False, id="every-quota"),
        pytest.param({"cpu": "3"}, [quota({"pods": "1"}, {"pods": "5"})], True, id="only-requested-resources"),
    ],
)
def test_one_job(wanted: ResourceList | None, quotas: list[ResourceQuota], admitted: bool) -> None:
    with open_session(ResourceQuotaPlugin, objects=[make_group(min_resources=wanted), *quotas]) as session:
        assert session.job_enqueueable(session.jobs["default/job"]) is admitted


def test_earlier_admitted_jobs_count() -> None:
    groups = [make_group(name, min_resources={"cpu": "2", "memory": "1"}) for name in ("a", "b", "c")]
    other = make_group("d", namespace="other", min_resources={"cpu": "2"})
    quotas = [quota({"cpu": "5", "memory": "9"}, {"cpu": "1"}), quota({"cpu": "2"}, namespace="other")]
    with open_session(ResourceQuotaPlugin, objects=[*groups, other, *quotas]) as session:
        found = [
            session.job_enqueueable(session.jobs[uid]) for uid in ("default/a", "default/b", "default/c", "other/d")
        ]
        assert found == [True, True, False, True]
        assert pod_group_messages(session) == [
            "c: resource quota insufficient, requested: cpu 2, used: cpu 1, limited: cpu 5"
        ]


def test_an_unreadable_amount_is_reported_once_and_the_others_still_limit() -> None:
    groups = [make_group(name, min_resources={"cpu": "2", "memory": "1"}) for name in ("a", "b")]
    odd = quota({"cpu": "much", "memory": "1"}, {"cpu": "1"})
    with open_session(ResourceQuotaPlugin, objects=[*groups, odd]) as session:
        assert session.job_enqueueable(session.jobs["default/a"])
        assert not session.job_enqueueable(session.jobs["default/b"])  # by its memory
        (fault,) = [fault for fault in session.faults if "quota" in fault]
        assert fault.startswith('resource quota default/rq: status.hard.cpu is "much", not a quantity such as 500m')
