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


def sync_shard(harness: LiveBatchHarness) -> NodeShardSync:
    live = harness.live
    shards = resource_of(kind_of(NodeShard))
    sync = NodeShardSync(live.engine, harness.client, live.writes, shards, live.clock, "mine", is_hard=True)
    live.between_sessions.append(sync.sync)
    return sync


@async_test
async def test_nodes_are_used_when_other_shards_release_them() -> None:
    async with run_live_batch(*WORLD, shard("mine", "a b"), shard("other", "", "b")) as harness:
        sync_shard(harness)
        await harness.session()
        assert list(harness.bound().values()) == ["a"]
        (patch,) = harness.sent("PATCH", PATH)
        assert patch["metadata"] == {"uid": "uid-mine", "resourceVersion": "7"}
        assert (patch["status"]["nodesInUse"], patch["status"]["nodesToAdd"]) == (["a"], ["b"])
        await harness.session()
        assert len(harness.sent("PATCH", PATH)) == 1  # the patch is being written
        harness.deliver(shard("mine", "a b", "a"), shard("other"))
        await harness.session()
        assert sorted(harness.bound().values()) == ["a", "b"]
        assert harness.sent("PATCH", PATH)[-1]["status"]["nodesInUse"] == ["a", "b"]


@async_test
async def test_a_failed_status_write_is_repeated() -> None:
    async with run_live_batch(*WORLD, shard("mine", "a")) as harness:
        sync_shard(harness)
        harness.fail_next("PATCH", PATH, status(500, "InternalError"))
        await harness.session()
        await harness.session()
        assert len(harness.sent("PATCH", PATH)) == 2


@async_test
async def test_the_status_is_written_again_if_an_earlier_patch_may_still_be_applied() -> None:
    """The status is already correct. Its version must change, so that the earlier patch cannot release the node."""
    async with run_live_batch(*WORLD, shard("mine", "", "a")) as harness:
        sync_shard(harness)
        harness.fail_next("PATCH", PATH, status(500, "InternalError"))
        await harness.session()
        harness.deliver(shard("mine", "a", "a"))
        for _ in range(2):
            await harness.session()
        assert [each["status"]["nodesInUse"] for each in harness.sent("PATCH", PATH)] == [[], ["a"]]


@async_test
async def test_a_missing_shard_is_logged_and_used_once_it_exists(caplog: pytest.LogCaptureFixture) -> None:
    async with run_live_batch(*WORLD) as harness:
        sync = sync_shard(harness)
        with caplog.at_level(logging.ERROR):
            await harness.session()
            sync.sync()
        assert caplog.messages == ["sharding is on, and there is no node shard mine; create it or use another name"]
        assert harness.bound() == {}
        harness.deliver(shard("mine", "a"))
        await harness.session()
        await wait_until(lambda: list(harness.bound().values()) == ["a"])
