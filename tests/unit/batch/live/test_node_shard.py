"""A scheduler with a NodeShard: the nodes that it uses, and the status that it writes."""

from __future__ import annotations

import logging

import pytest

from bayplan.batch.live.node_shard import NodeShardSync
from bayplan.client.resources import resource_of
from bayplan.objects.kinds import kind_of
from bayplan.objects.meta import ObjectMeta
from bayplan.objects.volcano.types import NodeShard, NodeShardSpec, NodeShardStatus
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, make_queue
from support.fakes.http_server import status
from support.harness.async_tests import async_test, wait_until
from support.harness.live_batch import LiveBatchHarness, run_live_batch

NODES = [make_node("a", cpu=1), make_node("b", cpu=1)]
WORLD = [*NODES, make_queue(), make_group("job"), make_member("job-w-0"), make_member("job-w-1")]
PATH = "/nodeshards/mine/status"


def shard(name: str, desired: str = "", in_use: str = "") -> NodeShard:
    spec, status = NodeShardSpec(tuple(desired.split())), NodeShardStatus(tuple(in_use.split()))
    return NodeShard(ObjectMeta(name=name, uid=f"uid-{name}"), spec, status)


def sync_shard(rig: LiveBatchHarness) -> NodeShardSync:
    live = rig.live
    shards = resource_of(kind_of(NodeShard))
    sync = NodeShardSync(live.engine, rig.client, live.writes, shards, live.clock, "mine", is_hard=True)
    live.between_sessions.append(sync.sync)
    return sync


@async_test
async def test_nodes_are_used_when_other_shards_release_them() -> None:
    async with run_live_batch(*WORLD, shard("mine", "a b"), shard("other", "", "b")) as rig:
        sync_shard(rig)
        await rig.session()
        assert list(rig.bound().values()) == ["a"]
        (patch,) = rig.sent("PATCH", PATH)
        assert patch["metadata"] == {"uid": "uid-mine", "resourceVersion": "7"}
        assert (patch["status"]["nodesInUse"], patch["status"]["nodesToAdd"]) == (["a"], ["b"])
        await rig.session()
        assert len(rig.sent("PATCH", PATH)) == 1  # the patch is being written
        rig.deliver(shard("mine", "a b", "a"), shard("other"))
        await rig.session()
        assert sorted(rig.bound().values()) == ["a", "b"]
        assert rig.sent("PATCH", PATH)[-1]["status"]["nodesInUse"] == ["a", "b"]


@async_test
async def test_a_failed_status_write_is_repeated() -> None:
    async with run_live_batch(*WORLD, shard("mine", "a")) as rig:
        sync_shard(rig)
        rig.fail_next("PATCH", PATH, status(500, "InternalError"))
        await rig.session()
        await rig.session()
        assert len(rig.sent("PATCH", PATH)) == 2


@async_test
async def test_the_status_is_written_again_if_an_earlier_patch_may_still_be_applied() -> None:
    """The status is already correct. Its version must change, so that the earlier patch cannot release the node."""
    async with run_live_batch(*WORLD, shard("mine", "", "a")) as rig:
        sync_shard(rig)
        rig.fail_next("PATCH", PATH, status(500, "InternalError"))
        await rig.session()
        rig.deliver(shard("mine", "a", "a"))
        for _ in range(2):
            await rig.session()
        assert [each["status"]["nodesInUse"] for each in rig.sent("PATCH", PATH)] == [[], ["a"]]


@async_test
async def test_a_missing_shard_is_logged_and_used_once_it_exists(caplog: pytest.LogCaptureFixture) -> None:
    async with run_live_batch(*WORLD) as rig:
        sync = sync_shard(rig)
        with caplog.at_level(logging.ERROR):
            await rig.session()
            sync.sync()
        assert caplog.messages == ["sharding is on, and there is no node shard mine; create it or use another name"]
        assert rig.bound() == {}
        rig.deliver(shard("mine", "a"))
        await rig.session()
        await wait_until(lambda: list(rig.bound().values()) == ["a"])
