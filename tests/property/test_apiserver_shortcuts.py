"""Optimised code paths of the API server against the general ones, for any object, time and path."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bayplan.apiserver.requests import parse_resource_path
from bayplan.apiserver.storage.store import Store
from bayplan.apiserver.storage.stored_objects import make_stored_object
from bayplan.apiserver.validation.clean_spec_cache import CleanSpecCache
from bayplan.apiserver.validation.pods.pod_spec import check_pod, check_pod_spec
from bayplan.apiserver.warnings.pods import pod_warnings
from bayplan.apiserver.writes.metadata import timestamp
from bayplan.codec.field_errors import FieldErrorList

moments = st.integers(0, 370 * 864_000).map(lambda n: datetime(2024, 12, 31, tzinfo=UTC) + timedelta(seconds=n / 10))
steps = st.sampled_from([0.0, 0.4, 1.0, 59.6, 60.0, 3600.0, 86400.0, 31 * 86400.0, 365 * 86400.0])


@given(moments, st.lists(steps, max_size=6))
def test_a_time_is_formatted_independently_of_earlier_ones(start: datetime, later: list[float]) -> None:
    for moment in (start, *(start + timedelta(seconds=each) for each in later), start):
        assert timestamp(moment) == moment.strftime("%Y-%m-%dT%H:%M:%SZ")


texts = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["", "1", "2"]), max_size=3)


def extract(tree: dict[str, Any]) -> dict[str, str]:
    return {f"spec.{key}": value for key, value in tree["spec"].items()}


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=6))
def test_a_stored_state_is_independent_of_earlier_ones(states: list[tuple[dict[str, str], dict[str, str]]]) -> None:
    store = Store()
    store.committed_objects(("", "pods")).extract = extract
    for version, (labels, spec) in enumerate(states, 1):
        tree = {"kind": "Pod", "spec": spec, "metadata": {"name": "p", "namespace": "n", "labels": labels}}
        alone = make_stored_object({**tree, "metadata": dict(tree["metadata"])}, version, extract)  # type: ignore[arg-type]
        entry = store.put(("", "pods"), tree)
        assert (entry.raw, entry.labels, entry.fields) == (alone.raw, alone.labels, alone.fields)


words = st.sampled_from(["namespaces", "pods", "default", "status", "finalize", "log", "a%2Fb"])


@given(st.sampled_from(["/api/v1", "/apis/apps/v1"]), st.lists(words, max_size=7), st.sampled_from(["", "/", "//"]))
def test_a_path_is_split_into_plural_name_part_and_rest(root: str, parts: list[str], end: str) -> None:
    """The parts after the namespace, in their order; an absent part is empty."""
    found = parse_resource_path("/".join((root, *parts)) + end)
    given_parts = [each.replace("%2F", "/") for each in "/".join(parts).split("/")]
    if found is None:
        assert given_parts == [""]
        return
    if found.namespace:
        assert given_parts[:2] == ["namespaces", found.namespace]
        given_parts = given_parts[2:]
    rest = "/".join(each for each in given_parts[3:] if each)
    assert (found.plural, found.name, found.subresource, found.rest) == (*(*given_parts, "", "")[:3], rest)


def some(**choices: list[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A dict with some of these keys, each with one of its values."""
    return st.fixed_dictionaries({}, optional={key: st.sampled_from(values) for key, values in choices.items()})


containers = st.builds(
    lambda given, more: {**given, **more},
    st.just({"name": "a", "image": "i", "imagePullPolicy": "Always", "terminationMessagePolicy": "File"}),
    some(
        name=["a", "b", "A!"],
        resources=[{"requests": {"cpu": "1"}}, {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}],
        ports=[[{"containerPort": 80, "protocol": "TCP"}], [{"containerPort": 0}], [{"containerPort": 80}] * 2],
        env=[[{"name": "x", "value": "1"}] * 2],
        volumeMounts=[[{"name": "v", "mountPath": "/v"}]],
    ),
)
specs = st.builds(
    lambda given, more, containers: {**given, **more, "containers": containers},
    st.just({"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "terminationGracePeriodSeconds": 30}),
    some(
        restartPolicy=["Never", "Sometimes"],
        terminationGracePeriodSeconds=[-1],
        nodeSelector=[{"a": "b"}, {"beta.kubernetes.io/os": "linux"}, {"-": "b"}],
        hostNetwork=[True],
        volumes=[[{"name": "v", "emptyDir": {}}], [{"name": "V!", "emptyDir": {}}]],
        tolerations=[[{"operator": "Exists"}], [{"operator": "Never"}]],
        topologySpreadConstraints=[[{"topologyKey": "zone", "maxSkew": 0, "whenUnsatisfiable": "DoNotSchedule"}]],
    ),
    st.lists(containers, max_size=2),
)


@given(st.lists(specs, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_a_clean_spec_is_valid_only_for_the_same_input(seen: list[Any], chance: Any) -> None:
    for number, spec in enumerate(chance.choices(seen, k=6)):
        pod = {"metadata": {"name": f"p{number}", "namespace": "n"}, "spec": spec}
        expected, found = FieldErrorList(), FieldErrorList()
        check_pod_spec(expected, spec, "spec", pod=pod["metadata"])
        check_pod(found, pod)
        assert found == expected
        at_length = {**pod, "metadata": {"annotations": {"example.com/owner": "other"}}}  # these are always validated
        assert pod_warnings("", pod) == pod_warnings("", at_length)


@given(st.lists(specs, max_size=8))
def test_the_clean_spec_cache_is_bounded(seen: list[Any]) -> None:
    known = CleanSpecCache(most=2)
    for spec in seen:
        known.add(known.key(spec))
        assert known.key(spec) in known
    assert len({known.key(spec) for spec in seen if known.key(spec) in known}) <= 2
