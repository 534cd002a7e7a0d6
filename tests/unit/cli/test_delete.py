"""`bayplan delete`: selected objects, requests, and the end of a deletion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from bayplan.cli.commands.objects.delete import (
    _delete,
    _delete_one,
    _DeleteOptions,
    _DeletionTarget,
    _find_targets,
    _wait_until_deleted,
)
from bayplan.client import KindMapping, resource_of
from bayplan.errors import Conflict, NotFound, UsageError
from bayplan.objects.core import Node
from bayplan.objects.kinds import kind_of
from support.fakes.http_server import (
    FakeHttpServer,
    Reply,
    ServerAnswer,
    WatchStream,
    deleted,
    error,
    listed,
    modified,
    node,
    status,
)
from support.harness.async_tests import async_test
from support.harness.in_process_commands import UNREACHABLE_KUBECONFIG, CommandRunner

NODES = KindMapping(resource=resource_of(kind_of(Node)), kind="Node")
A = _DeletionTarget(NODES, "", "a")
PATH = "/api/v1/nodes/a"
THERE, DONE = Reply(200, node("a", 10, uid="one")), Reply(200, {"kind": "Status"})
MISSING, REPLACED = status(404, "NotFound"), status(409, "Conflict", "the UID in the precondition is another one")


def delete_options(**fields: Any) -> _DeleteOptions:
    return _DeleteOptions(
        **{"grace_s": None, "propagation": "Background", "wait": False, "ignore_missing": False, **fields}
    )


@pytest.mark.parametrize(
    ("options", "body"),
    [
        pytest.param(delete_options(), {"propagationPolicy": "Background"}, id="as it is"),
        pytest.param(
            delete_options(grace_s=0), {"propagationPolicy": "Background", "gracePeriodSeconds": 0}, id="at once"
        ),
        pytest.param(
            delete_options(grace_s=5), {"propagationPolicy": "Background", "gracePeriodSeconds": 5}, id="in 5 s"
        ),
        pytest.param(delete_options(propagation="Orphan"), {"propagationPolicy": "Orphan"}, id="alone"),
    ],
)
def test_the_delete_request(options: _DeleteOptions, body: dict[str, Any]) -> None:
    @async_test
    async def run() -> None:
        async with FakeHttpServer(script=[THERE, DONE]) as server, server.client() as client:
            assert await _delete_one(client, A, options) == "one"
            assert server.request_lines() == [f"GET {PATH}", f"DELETE {PATH}"]
            head = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "one"}}
            assert server.requests[1].json == head | body

    run()


KNOWN = _DeletionTarget(NODES, "", "a", uid="zero")


@pytest.mark.parametrize(
    ("doomed", "ignore_missing", "answers", "ends"),
    [
        pytest.param(A, False, [MISSING], NotFound, id="a name that is not there"),
        pytest.param(A, True, [MISSING], None, id="a name that may be missing"),
        pytest.param(KNOWN, False, [MISSING], None, id="selected by labels and deleted elsewhere"),
        pytest.param(A, False, [THERE, MISSING], NotFound, id="deleted between the two requests"),
        pytest.param(A, False, [THERE, REPLACED], Conflict, id="a name that another one takes"),
        pytest.param(KNOWN, False, [THERE, REPLACED], None, id="found by labels and replaced"),
        pytest.param(KNOWN, False, [THERE, DONE], "zero", id="the one that was found"),
    ],
)
def test_objects_that_are_deleted_elsewhere(
    doomed: _DeletionTarget, ignore_missing: bool, answers: list[ServerAnswer], ends: Any
) -> None:
    @async_test
    async def run() -> None:
        async with FakeHttpServer(script=answers) as server, server.client() as client:
            work = _delete_one(client, doomed, delete_options(ignore_missing=ignore_missing))
            if isinstance(ends, type):
                with pytest.raises(ends):
                    await work
            else:
                assert await work == ends
            assert not server.script

    run()


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param([MISSING], id="not there any more"),
        pytest.param([Reply(200, node("a", 12, uid="two"))], id="another one of the name"),
        pytest.param(
            [THERE, WatchStream(modified(node("a", 11, uid="one")), deleted(node("a", 12, uid="one")))], id="watched"
        ),
        pytest.param([THERE, WatchStream(error(410, "Expired")), MISSING], id="the watch is too old"),
    ],
)
def test_a_deletion_is_over_when_the_object_is_gone(answers: list[ServerAnswer]) -> None:
    @async_test
    async def run() -> None:
        async with FakeHttpServer(script=answers) as server, server.client() as client:
            await _wait_until_deleted(client, A, "one")
            assert not server.script

    run()


@pytest.mark.parametrize(("wait", "requests"), [(True, 3), (False, 2)], ids=["waits", "returns at once"])
def test_a_deletion_is_printed_and_waited_for(capsys: pytest.CaptureFixture[str], wait: bool, requests: int) -> None:
    @async_test
    async def run() -> None:
        async with FakeHttpServer(script=[THERE, DONE, MISSING]) as server, server.client() as client:
            await _delete(client, [A], delete_options(wait=wait))
            assert len(server.requests) == requests

    run()
    assert capsys.readouterr().out == "node/a deleted\n"


def test_an_object_that_was_deleted_elsewhere_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    @async_test
    async def run() -> None:
        async with FakeHttpServer(script=[MISSING]) as server, server.client() as client:
            await _delete(client, [KNOWN], delete_options(wait=True))
            assert len(server.requests) == 1

    run()
    assert capsys.readouterr().out == ""


def discovery_responses(*resources: tuple[str, str, bool]) -> list[ServerAnswer]:
    """Responses of API discovery."""
    kinds = [
        {
            "resource": plural,
            "singularResource": plural[:-1],
            "responseKind": {"group": "", "version": "v1", "kind": kind},
            "scope": "Namespaced" if namespaced else "Cluster",
            "verbs": ["list", "delete"],
        }
        for plural, kind, namespaced in resources
    ]
    core = {"metadata": {"name": ""}, "versions": [{"version": "v1", "resources": kinds}]}
    empty: dict[str, Any] = {"kind": "APIGroupDiscoveryList", "items": []}
    return [Reply(200, {**empty, "items": [core]}), Reply(200, empty)]


CATALOGUE = (("nodes", "Node", False), ("pods", "Pod", True))


@pytest.mark.parametrize(
    ("what", "labels", "every", "found"),
    [
        pytest.param(["pod", "a", "b"], "", False, [("team", "a", ""), ("team", "b", "")], id="names"),
        pytest.param(["node/a"], "", False, [("", "a", "")], id="a kind without namespaces"),
        pytest.param(["pods"], "", True, [("team", "x", "u1")], id="all"),
        pytest.param(["pods"], "app=web", False, [("team", "x", "u1")], id="labels"),
    ],
)
def test_the_selected_objects(what: Sequence[str], labels: str, every: bool, found: list[tuple[str, str, str]]) -> None:
    @async_test
    async def run() -> None:
        item = {"metadata": {"name": "x", "namespace": "team", "uid": "u1"}}
        async with (
            FakeHttpServer(script=[*discovery_responses(*CATALOGUE), listed(5, item)]) as server,
            server.client() as client,
        ):
            doomed = await _find_targets(client, what, "team", labels, every=every)
            assert [(each.namespace, each.name, each.uid) for each in doomed] == found
            lists = [request for request in server.requests if request.path == "/api/v1/namespaces/team/pods"]
            assert [request.options.get("labelSelector", "") for request in lists] == (
                [labels] if labels or every else []
            )

    run()


@pytest.mark.parametrize(
    ("what", "labels", "every", "words"),
    [
        (["pod", "a"], "app=web", False, "a name selects one object; leave out -l and --all"),
        (["pod", "a"], "", True, "a name selects one object; leave out -l and --all"),
        (["pods"], "", False, "no pods selected; give names, -l LABELS or --all"),
    ],
    ids=["name and labels", "name and all", "a kind alone"],
)
def test_contradicting_selections_are_refused(what: Sequence[str], labels: str, every: bool, words: str) -> None:
    @async_test
    async def run() -> None:
        async with FakeHttpServer(script=discovery_responses(*CATALOGUE)) as server, server.client() as client:
            with pytest.raises(UsageError) as caught:
                await _find_targets(client, what, "team", labels, every=every)
            assert str(caught.value) == words

    run()


def test_an_empty_selection_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    @async_test
    async def run() -> None:
        async with (
            FakeHttpServer(script=[*discovery_responses(*CATALOGUE), listed(5)]) as server,
            server.client() as client,
        ):
            assert await _find_targets(client, ["pods"], "team", "app=web", every=False) == []

    run()
    assert capsys.readouterr().err == "there is nothing to delete\n"


@pytest.mark.parametrize("arguments", [[], ["pod", "a", "-f", "x.yaml"]], ids=["neither", "both"])
def test_names_and_files_exclude_each_other(run: CommandRunner, tmp_path: Any, arguments: list[str]) -> None:
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(UNREACHABLE_KUBECONFIG)
    ended = run("delete", *arguments, "--kubeconfig", kubeconfig)
    assert ended.code == 2
    assert ended.err.startswith("error: name what to delete, or files with -f, and not both")
