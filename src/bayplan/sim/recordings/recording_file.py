"""File format of recordings: a header line, objects, decisions, changes and an end line.

A cluster that was followed has changes between its decisions: objects that were added, updated or deleted. Every line
is one JSON value, so files of any size are written line by line, `grep` and `diff` work, and errors have a line number.
Objects contain only what a decision can depend on. A name that ends in `.gz` is compressed. The same recording always
has the same bytes.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from bayplan import __version__
from bayplan.batch.cluster_state import DEFAULT_SCHEDULER
from bayplan.errors import BayplanError, ObjectError
from bayplan.objects.core import Pod
from bayplan.objects.kinds import convert, decode_error_text, find_kind, kind_of
from bayplan.objects.meta import KubeObject
from bayplan.objects.volcano.types import DEFAULT_QUEUE

S = TypeVar("S", bound=msgspec.Struct)

VERSION = 1
POD_ENGINE, BATCH_ENGINE = "pods", "batch"
_HEADER_PREFIX = b'{"recording"'
OBSERVED, DECIDED = "observed", "decided"
"""Decisions observed in a live cluster, and decisions made for the recording."""


class RecordingError(BayplanError):
    """A recording is invalid; the message has the place, the problem and the expectation."""

    def __init__(self, path: Path, line: int, what: str) -> None:
        super().__init__(f"{path}, line {line}: {what}")
        self.path, self.line = path, line


class _RecordingLine(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True, kw_only=True
):
    """Base of the lines; unknown keys are errors."""


class RecordingHeader(_RecordingLine, frozen=True):
    """The first line: metadata of the recording, and how its decisions were made."""

    recording: int
    """Version of the format."""
    at: datetime
    """Time of the cluster; the clock of a replay stands still there."""
    by: str = f"bayplan {__version__}"
    decisions: str = DECIDED
    seed: int = 0
    anonymous: bool = False
    configuration: str | None = None
    """Text of the KubeSchedulerConfiguration; None is the default."""
    batch_configuration: str | None = None
    """Text of volcano-scheduler.conf; None is the built-in one."""
    batch_schedulers: tuple[str, ...] = (DEFAULT_SCHEDULER,)
    default_queue: str = DEFAULT_QUEUE
    until: datetime | None = None
    """Time until which the cluster was followed; None if only one moment is recorded."""


class RecordedDecision(_RecordingLine, frozen=True):
    pod: str
    engine: str = POD_ENGINE
    node: str = ""
    """Chosen node; empty if the pod waits."""
    why: str = ""
    evicted: tuple[str, ...] = ()
    """Victims that were evicted for the pod."""
    nominated: str = ""
    """Nominated node of a waiting pod."""
    session: int = 0
    """Session of the batch engine; decisions with the same number were made together."""
    at: datetime | None = None
    """Time at which it was observed in a live cluster."""
    annotations: dict[str, str] = {}
    """Annotations that plugins wrote to the BindRequest of the pod, if there was one."""


class _ChangeLine(_RecordingLine, frozen=True):
    """A change, as it is encoded."""

    at: datetime | None = None
    comes: dict[str, Any] | None = None
    goes: dict[str, Any] | None = None


class _EndLine(_RecordingLine, frozen=True):
    """The last line; it is missing in a truncated file."""

    objects: int
    decisions: int
    changes: int = 0


@dataclass(frozen=True, slots=True)
class RecordedChange:
    """A change of the cluster besides decisions: the new state of an object, or its deletion."""

    item: KubeObject
    deleted: bool = False
    at: datetime | None = None
    after: int = 0
    """Number of decisions made before."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A cluster at one moment, its decisions in order, and the changes between them if it was followed."""

    header: RecordingHeader
    objects: tuple[KubeObject, ...]
    decisions: tuple[RecordedDecision, ...]
    changes: tuple[RecordedChange, ...] = ()

    def decisions_and_changes(self) -> Iterator[RecordedDecision | RecordedChange]:
        """Decisions and changes in order."""
        changes = iter(self.changes)
        change = next(changes, None)
        for number, decision in enumerate(self.decisions):
            while change is not None and change.after <= number:
                yield change
                change = next(changes, None)
            yield decision
        if change is not None:
            yield change
            yield from changes

    def objects_at_end(self) -> tuple[KubeObject, ...]:
        if self.header.until is None:
            return self.objects
        known = {(type(item), item.key): item for item in self.objects}
        for step in self.decisions_and_changes():
            if isinstance(step, RecordedChange):
                key = (type(step.item), step.item.key)
                known.pop(key, None)
                if not step.deleted:
                    known[key] = step.item
            elif step.node and isinstance(pod := known.get((Pod, step.pod)), Pod):
                known[Pod, step.pod] = pod.bound_to(step.node)
        return tuple(known.values())


def is_recording(path: Path) -> bool:
    """Whether a file is a recording, by name or first bytes; manifests are .yaml, .yml and .json."""
    if path.name.endswith((".jsonl", ".gz")) or not path.is_file():
        return path.name.endswith((".jsonl", ".gz"))
    with path.open("rb") as file:
        return file.read(len(_HEADER_PREFIX)) == _HEADER_PREFIX


# Encoding


def write_recording(path: Path, recording: Recording) -> None:
    """Write a recording to a temporary file, which replaces the target when it is complete."""
    temporary = _temporary_path(path)
    with _explain_write_errors(path, temporary):
        with temporary.open("wb") as file, _compressed_file(file, path) as out:
            for line in encode_lines(recording):
                out.write(line.encode() + b"\n")
        if temporary != path:
            temporary.replace(path)


def check_writable(path: Path) -> None:
    """Raise an error if the file cannot be written; called before a cluster is followed for hours."""
    temporary = _temporary_path(path)
    with _explain_write_errors(path, temporary):
        if temporary != path:
            temporary.open("wb").close()


def _temporary_path(path: Path) -> Path:
    """Path of the temporary file; the path itself for a device or a pipe, which cannot be replaced."""
    if path.is_dir():
        raise BayplanError(f"{path} cannot be written: it is a folder; name a file in it")
    return path if path.exists() and not path.is_file() else path.with_name(f".{path.name}.part")


@contextmanager
def _explain_write_errors(path: Path, temporary: Path) -> Iterator[None]:
    try:
        yield
    except OSError as fault:
        raise BayplanError(f"{path} cannot be written: {fault.strerror}; name a file in a folder of yours") from None
    finally:
        if temporary != path:
            with suppress(OSError):
                temporary.unlink()


def encode_lines(recording: Recording) -> Iterator[str]:
    yield _json_line(msgspec.to_builtins(recording.header))
    for item in recording.objects:
        yield _json_line({"object": object_manifest(item)})
    for step in recording.decisions_and_changes():
        if isinstance(step, RecordedDecision):
            yield _json_line({"decision": msgspec.to_builtins(step)})
        else:
            when = {} if step.at is None else {"at": msgspec.to_builtins(step.at)}
            yield _json_line({"change": {**when, "goes" if step.deleted else "comes": _encode_change(step)}})
    yield _json_line({"end": msgspec.to_builtins(_end_line(recording.objects, recording.decisions, recording.changes))})


def _end_line(objects: Sized, decisions: Sized, changes: Sized) -> _EndLine:
    return _EndLine(objects=len(objects), decisions=len(decisions), changes=len(changes))


def _encode_change(change: RecordedChange) -> dict[str, Any]:
    """Encode a change; a deleted object is reduced to its identity."""
    if not change.deleted:
        return object_manifest(change.item)
    kind, meta = kind_of(type(change.item)), change.item.metadata
    names = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}
    return {
        "apiVersion": kind.api_versions[0],
        "kind": kind.name,
        "metadata": {key: text for key, text in names.items() if text},
    }


def object_manifest(item: KubeObject) -> dict[str, Any]:
    kind = kind_of(type(item))
    return {"apiVersion": kind.api_versions[0], "kind": kind.name, **msgspec.to_builtins(item)}


def _json_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@contextmanager
def _compressed_file(file: IO[bytes], path: Path) -> Iterator[IO[bytes]]:
    if path.suffix != ".gz":
        yield file
        return
    # File name and time are left out of the header, so that equal recordings have equal bytes.
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as compressed:
        yield compressed  # type: ignore[misc]


# Decoding


def read_recording(path: Path) -> Recording:
    """Read a recording; `RecordingError` names the line, the field and the expectation."""
    header: RecordingHeader | None = None
    end: _EndLine | None = None
    objects: list[KubeObject] = []
    decisions: list[RecordedDecision] = []
    changes: list[RecordedChange] = []
    number = 0
    for number, text in _read_numbered_lines(path):
        tree = _parse_line(path, number, text)
        if header is None:
            header = _header(path, number, tree)
        elif end is not None:
            raise RecordingError(path, number, "there are lines after the end; expected none")
        elif "object" in tree:
            objects.append(_object(path, number, "object", tree["object"]))
        elif "decision" in tree:
            decisions.append(_convert_part(path, number, tree, "decision", RecordedDecision))
        elif "change" in tree:
            changes.append(_change(path, number, tree["change"], after=len(decisions)))
        elif "end" in tree:
            end = _convert_part(path, number, tree, "end", _EndLine)
        else:
            keys = ", ".join(tree) or "nothing"
            raise RecordingError(path, number, f"it holds {keys}; expected object, decision, change or end")
    if header is None:
        raise RecordingError(path, 1, 'the file is empty; expected {"recording": 1, ...}')
    if end is None:
        raise RecordingError(path, number + 1, 'the file is truncated; expected {"end": ...}')
    found = _end_line(objects, decisions, changes)
    if end != found:
        raise RecordingError(
            path, number, f"end: the file holds {_describe_counts(found)}; expected {_describe_counts(end)}"
        )
    return Recording(header, tuple(objects), tuple(decisions), tuple(changes))


def _describe_counts(end: _EndLine) -> str:
    counts = f"objects {end.objects} and decisions {end.decisions}"
    return f"{counts} and changes {end.changes}" if end.changes else counts


def _read_numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        with path.open("rb") as file:
            compressed = file.peek(2)[:2] == b"\x1f\x8b"
            stream = gzip.GzipFile(fileobj=file, mode="rb") if compressed else file
            for number, text in enumerate(io.TextIOWrapper(stream, encoding="utf-8"), 1):
                if text.strip():
                    yield number, text
    except UnicodeDecodeError:
        raise RecordingError(path, number + 1, "it is not text; expected UTF-8, or a name that ends in .gz") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as fault:
        raise RecordingError(path, number + 1, f"the gzip file is incomplete: {fault}; record it again") from None
    except OSError as fault:
        raise BayplanError(f"{path} cannot be read: {fault.strerror}; name a file of `bayplan record`") from None


def _parse_line(path: Path, number: int, text: str) -> dict[str, Any]:
    try:
        tree = json.loads(text)
    except ValueError as fault:
        raise RecordingError(path, number, f"it is not JSON: {fault}; expected one object per line") from None
    if not isinstance(tree, dict):
        raise RecordingError(path, number, "it is not a JSON object; expected object, decision, change or end")
    return tree


def _header(path: Path, number: int, tree: dict[str, Any]) -> RecordingHeader:
    version = tree.get("recording")
    if version is None:
        raise RecordingError(path, number, 'the first line is not a header; expected {"recording": 1, ...}')
    if version != VERSION:
        raise RecordingError(path, number, f"recording: the version of the format is {version!r}; expected {VERSION}")
    header = _convert_field(path, number, "", tree, RecordingHeader)
    if header.decisions not in (OBSERVED, DECIDED):
        raise RecordingError(
            path, number, f"decisions: they are {header.decisions!r}; expected {OBSERVED!r} or {DECIDED!r}"
        )
    return header


def _convert_part(path: Path, number: int, tree: dict[str, Any], key: str, struct: type[S]) -> S:
    found = _convert_field(path, number, key, tree[key], struct)
    if isinstance(found, RecordedDecision) and found.engine not in (POD_ENGINE, BATCH_ENGINE):
        raise RecordingError(
            path, number, f"decision.engine: it is {found.engine!r}; expected {POD_ENGINE!r} or {BATCH_ENGINE!r}"
        )
    return found


def _convert_field(path: Path, number: int, key: str, value: Any, struct: type[S]) -> S:
    try:
        return msgspec.convert(value, struct)
    except msgspec.ValidationError as fault:
        prefix = f"{key}: " if key else ""
        field = re.search(r"(unknown|missing required) field `(\w+)`", str(fault))
        if field is None:
            raise RecordingError(path, number, f"{prefix}{decode_error_text(str(fault))}") from None
        known = ", ".join(struct.__struct_encode_fields__)
        problem = "is missing" if field[1] != "unknown" else "is an unknown field"
        raise RecordingError(path, number, f"{prefix}{field[2]} {problem}; expected some of {known}") from None


def _change(path: Path, number: int, tree: Any, after: int) -> RecordedChange:
    line = _convert_field(path, number, "change", tree, _ChangeLine)
    if (line.comes is None) == (line.goes is None):
        raise RecordingError(path, number, "change: the action is missing; expected either comes or goes")
    field, raw = ("comes", line.comes) if line.comes is not None else ("goes", line.goes)
    return RecordedChange(_object(path, number, f"change.{field}", raw), line.goes is not None, line.at, after)


def _object(path: Path, number: int, key: str, raw: Any) -> KubeObject:
    api_version, name = (raw.get("apiVersion"), raw.get("kind")) if isinstance(raw, dict) else (None, None)
    if not isinstance(api_version, str) or not isinstance(name, str):
        raise RecordingError(path, number, f"{key}: apiVersion or kind is missing; expected both")
    try:
        kind = find_kind(api_version, name)
        if kind is None:
            raise RecordingError(
                path, number, f"{key}.kind: no scheduler reads {name} of {api_version}; expected a kind that it reads"
            )
        return convert(raw, kind.struct)
    except ObjectError as fault:
        raise RecordingError(path, number, f"{key}: {fault}") from None
