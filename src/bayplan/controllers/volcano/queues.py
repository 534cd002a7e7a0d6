"""Queue controller: opens and closes queues, on command and with their parents, and keeps their state.

A closed queue closes its children, and reopens them when it is opened. Cost: a walk over the queue's own pod groups and
children, which are indexed. The queues `root` and `default` are created when they are missing.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress

from bayplan.client import MERGE_PATCH
from bayplan.client.work_queue import WorkQueue
from bayplan.controllers.core.api_types import Tree, UntypedObject
from bayplan.controllers.core.shared_informers import Key, SharedInformerFactory
from bayplan.controllers.volcano.controller import VolcanoController
from bayplan.controllers.volcano.resources import COMMANDS, POD_GROUPS, QUEUES, Command
from bayplan.errors import NotFound, ObjectError
from bayplan.objects.volcano.constants import (
    CLOSE_QUEUE,
    CLOSED,
    CLOSED_BY_PARENT,
    CLOSING,
    COMMAND_ISSUED,
    OPEN,
    OPEN_QUEUE,
    UNKNOWN,
)
from bayplan.objects.volcano.types import DEFAULT_QUEUE, ROOT_QUEUE

SYNC_QUEUE = "SyncQueue"
CLOSED_STATES = (CLOSED, CLOSING)
_DEFAULT_QUEUES = (
    (ROOT_QUEUE, {"reclaimable": False, "weight": 1}),
    (DEFAULT_QUEUE, {"reclaimable": True, "weight": 1}),
)


class QueueController(VolcanoController):
    """Opens and closes queues, and keeps their state."""

    name = "volcano-queue-controller"

    def __init__(self, informers: SharedInformerFactory) -> None:
        super().__init__(informers)
        self.queues = self.informer(QUEUES, UntypedObject)
        self.groups = self.informer(POD_GROUPS, UntypedObject)
        self.commands = self.informer(COMMANDS, Command)
        self._groups_by_queue: dict[str, set[Key]] = defaultdict(set)
        self._children: dict[str, set[str]] = defaultdict(set)
        self._actions: dict[str, str] = {}
        """Requested action of each queue, besides its sync."""
        self._recorded: set[str] = set()
        self._command_queue: WorkQueue[Key] = WorkQueue(
            "command", self._execute_command, clock=informers.clock, chance=informers.chance, workers=2
        )
        self.queues.add_handler(self._on_queue)
        self.groups.add_handler(self._on_group)
        self.commands.add_handler(self._on_command)

    async def run(self) -> None:
        await self.wait_synced()
        for name, _ in _DEFAULT_QUEUES:
            self.queue.add(("", name))
        async with asyncio.TaskGroup() as group:
            group.create_task(self.queue.run())
            group.create_task(self._command_queue.run())

    # Event handlers.

    def _on_queue(self, old: UntypedObject | None, new: UntypedObject | None) -> None:
        if old is not None:
            self._children[_parent(old)].discard(old.name)
        if new is not None:
            self._children[_parent(new)].add(new.name)
            if old is None or _state(old) != _state(new):
                for child in self._children.get(new.name, ()):
                    self.queue.add(("", child))
        self.enqueue(old, new)

    def _on_group(self, old: UntypedObject | None, new: UntypedObject | None) -> None:
        for item, exists in ((old, False), (new, True)):
            if item is not None:
                name, key = item.spec.get("queue") or DEFAULT_QUEUE, (item.namespace, item.name)
                groups = self._groups_by_queue[name]
                groups.add(key) if exists else groups.discard(key)
                if (old is None) is not (new is None):
                    self.queue.add(("", name))

    def _on_command(self, _: Command | None, new: Command | None) -> None:
        if new is not None and new.target is not None and new.target.kind == "Queue":
            self._command_queue.add((new.namespace, new.name))

    async def _execute_command(self, key: Key) -> None:
        """Execute a command. It is deleted first, so that it is executed at most once."""
        command = self.commands.get(*key)
        if command is None or command.target is None or not await self.delete(COMMANDS, command):
            return
        queue = self.queues.get("", command.target.name)
        if queue is not None:
            self.record_event(QUEUES, queue, COMMAND_ISSUED, f"Start to execute command {command.action}")
            self._request_action(queue.name, command.action)

    def _request_action(self, name: str, action: str) -> None:
        self._actions[name] = action
        self.queue.add(("", name))

    # Sync.

    async def sync(self, key: Key) -> float | None:
        name = key[1]
        queue = self.get_latest(self.queues, key)
        if queue is None:
            self._actions.pop(name, None)
            spec = dict(_DEFAULT_QUEUES).get(name)
            if spec is not None:
                await self.ensure(QUEUES, "", {"metadata": {"name": name}, "spec": spec})
            return None
        if name != ROOT_QUEUE and not queue.spec.get("parent"):
            queue = await self.replace(QUEUES, queue, {"/spec/parent": ROOT_QUEUE})
        action = self._actions.get(name, SYNC_QUEUE)
        if action == OPEN_QUEUE and _state(queue) != OPEN:
            self._check_parent(queue)
            await self._open(queue)
        elif action == CLOSE_QUEUE and _state(queue) not in CLOSED_STATES:
            await self._close(queue)
        else:
            await self._sync_state(queue)
        self._finish_action(name, action)
        return None

    def _finish_action(self, name: str, action: str) -> None:
        """Drop an action. A command that arrived in the meantime replaced it and stays."""
        if self._actions.get(name) == action:
            del self._actions[name]

    def _check_parent(self, queue: UntypedObject) -> None:
        """Refuse to open a queue whose parent is closed."""
        parent = self.queues.get("", _parent(queue)) if _parent(queue) != ROOT_QUEUE else None
        if parent is not None and _state(parent) in CLOSED_STATES:
            note = (
                f"Failed to open queue {queue.name} because its parent queue {parent.name} is closing or closed. "
                "Open the parent queue first."
            )
            self.record_event(QUEUES, queue, OPEN_QUEUE, note, warning=True)
            self._actions.pop(queue.name, None)
            raise ObjectError(note)

    async def _open(self, queue: UntypedObject) -> None:
        await self._set_state(queue, OPEN)
        if queue.metadata.annotations.get(CLOSED_BY_PARENT) != "false":
            await self._annotate(queue, "false")
        self.record_event(QUEUES, queue, OPEN_QUEUE, "Open queue succeed")
        for child in self._children.get(queue.name, ()):
            self.queue.add(("", child))

    async def _close(self, queue: UntypedObject) -> None:
        if queue.name == ROOT_QUEUE:
            self.record_event(QUEUES, queue, CLOSE_QUEUE, "Root queue cannot be closed", warning=True)
            return
        await self._set_state(queue, state_after(_state(queue), CLOSE_QUEUE, self._count(queue)))
        self.record_event(QUEUES, queue, CLOSE_QUEUE, "Close queue succeed")
        for child in self._children.get(queue.name, ()):
            self.queue.add(("", child))

    async def _sync_state(self, queue: UntypedObject) -> None:
        """Sync the state of a queue without a requested action, following its parent."""
        parent = self.queues.get("", _parent(queue))
        if queue.name != ROOT_QUEUE and parent is None:
            self._record_once(queue, f"parent queue {_parent(queue)} of queue {queue.name} does not exist")
        by_parent = queue.metadata.annotations.get(CLOSED_BY_PARENT) == "true"
        if parent is not None and not self._is_in_cycle(queue):
            if _state(parent) in CLOSED_STATES and _state(queue) not in CLOSED_STATES:
                await self._annotate(queue, "true")
                self._request_action(queue.name, CLOSE_QUEUE)
                await self._close(queue)
                self._finish_action(queue.name, CLOSE_QUEUE)
                return
            if _state(parent) == OPEN and _state(queue) in CLOSED_STATES and by_parent:
                await self._open(queue)
                return
        await self._set_state(queue, state_after(_state(queue), SYNC_QUEUE, self._count(queue)))

    def _is_in_cycle(self, queue: UntypedObject) -> bool:
        """Whether a queue or one of its ancestors is its own ancestor. Its state then ignores the parent."""
        seen, parent = [queue.name], _parent(queue)
        while parent not in ("", ROOT_QUEUE):
            if parent in seen:
                cycle = " > ".join(reversed([*seen[seen.index(parent) :], parent]))
                below = "itself" if parent == queue.name else "queues that are below themselves"
                self._record_once(
                    queue, f"queue {queue.name} is below {below}: {cycle}; give one of them another parent"
                )
                return True
            seen.append(parent)
            found = self.queues.get("", parent)
            parent = _parent(found) if found is not None else ""
        return False

    def _record_once(self, queue: UntypedObject, note: str) -> None:
        if f"{queue.uid} {note}" not in self._recorded:
            self._recorded.add(f"{queue.uid} {note}")
            self.record_event(QUEUES, queue, "InvalidHierarchy", note, warning=True)

    def _count(self, queue: UntypedObject) -> int:
        return len(self._groups_by_queue.get(queue.name, ()))

    async def _set_state(self, queue: UntypedObject, state: str) -> None:
        """Write the state only: the scheduler writes the rest of the status."""
        if state != _state(queue):
            body = {"status": {"state": state}}
            with suppress(NotFound):
                await self.client.patch(QUEUES, body, name=queue.name, subresource="status", kind=MERGE_PATCH)

    async def _annotate(self, queue: UntypedObject, value: str) -> None:
        body: Tree = {"metadata": {"annotations": {CLOSED_BY_PARENT: value}}}
        if queue.metadata.annotations.get(CLOSED_BY_PARENT) != value:
            await self.client.patch(QUEUES, body, name=queue.name, kind=MERGE_PATCH)


def _state(queue: UntypedObject) -> str:
    return str(queue.status.get("state") or "")


def _parent(queue: UntypedObject) -> str:
    return str(queue.spec.get("parent") or ("" if queue.name == ROOT_QUEUE else ROOT_QUEUE))


def state_after(state: str, action: str, groups: int) -> str:
    """State after an action, as in Volcano's state machine. `groups`: number of the queue's pod groups."""
    if action == OPEN_QUEUE:
        return OPEN
    closing = CLOSING if groups else CLOSED
    if action == CLOSE_QUEUE:
        return CLOSED if state == CLOSED else closing
    if state in ("", OPEN):
        return OPEN
    if state == CLOSED:
        return CLOSED
    return closing if state == CLOSING else UNKNOWN
