"""What was a cluster, and what was decided in it? One file: a line that says what it is, objects, decisions, an end.

A cluster that was followed for some time has changes between its decisions: objects that came, changed or went.
Every line is one JSON value: a file of any size is written line by line, `grep` and `diff` work on
it, and whatever is wrong with it has a line number. Objects hold what a decision can depend on and nothing else. A name
that ends in `.gz` is packed. The same recording is always the same bytes.
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
"""Decisions that a live cluster shows, and those that were made for the recording."""


class RecordingError(BayplanError):
    """A recording cannot be read: where, what is wrong, and what was expected."""

    def __init__(self, path: Path, line: int, what: str) -> None:
        super().__init__(f"{path}, line {line}: {what}")
        self.path, self.line = path, line


class _RecordingLine(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True, kw_only=True
):
    """Base of what stands in a line: a key that nobody knows is a mistake."""


class RecordingHeader(_RecordingLine, frozen=True):
    """The first line: what the file is, and how its decisions were made."""

    recording: int
    """The version of the format."""
    at: datetime
    """The moment of the cluster; clocks of a replay stand still there."""
    by: str = f"bayplan {__version__}"
    decisions: str = DECIDED
    seed: int = 0
    anonymous: bool = False
    configuration: str | None = None
    """The text of the KubeSchedulerConfiguration; None: the default one."""
    batch_configuration: str | None = None
    """The text of the volcano-scheduler.conf; None: the built-in one."""
    batch_schedulers: tuple[str, ...] = (DEFAULT_SCHEDULER,)
    default_queue: str = DEFAULT_QUEUE
    until: datetime | None = None
    """How long the cluster was followed; None: it is the cluster of one moment."""


class RecordedDecision(_RecordingLine, frozen=True):
    """What was decided about one pod."""

    pod: str
    engine: str = POD_ENGINE
    node: str = ""
    """Where it goes; nothing: it waits."""
    why: str = ""
    evicted: tuple[str, ...] = ()
    """Pods that had to go for it."""
    nominated: str = ""
    """The node that it waits for."""
    session: int = 0
    """Of the batch engine: decisions of one number were made together."""
    at: datetime | None = None
    """When a live cluster showed it."""
    annotations: dict[str, str] = {}
    """What plugins handed to the binder with it, where the pod was bound by a BindRequest."""


class _ChangeLine(_RecordingLine, frozen=True):
    """What happened, as a line has it."""

    at: datetime | None = None
    comes: dict[str, Any] | None = None
    goes: dict[str, Any] | None = None


class _EndLine(_RecordingLine, frozen=True):
    """The last line: a file that was cut has none."""

    objects: int
    decisions: int
    changes: int = 0


@dataclass(frozen=True, slots=True)
class RecordedChange:
    """Something that happened in a cluster besides decisions: from then on the object is this, or is no more."""

    item: KubeObject
    gone: bool = False
    at: datetime | None = None
    after: int = 0
    """So many decisions were made before."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A cluster at one moment, decisions in their order, and what happened between them where it was followed."""

    header: RecordingHeader
    objects: tuple[KubeObject, ...]
    decisions: tuple[RecordedDecision, ...]
    changes: tuple[RecordedChange, ...] = ()

    def decisions_and_changes(self) -> Iterator[RecordedDecision | RecordedChange]:
        """Decisions and changes in the order in which they happened."""
        changes = iter(self.changes)
        change = next(changes, None)
        for number, verdict in enumerate(self.decisions):
            while change is not None and change.after <= number:
                yield change
                change = next(changes, None)
            yield verdict
        if change is not None:
            yield change
            yield from changes

    def objects_at_end(self) -> tuple[KubeObject, ...]:
        """The cluster when the recording ended."""
        if self.header.until is None:
            return self.objects
        known = {(type(item), item.key): item for item in self.objects}
        for step in self.decisions_and_changes():
            if isinstance(step, RecordedChange):
                key = (type(step.item), step.item.key)
                known.pop(key, None)
                if not step.gone:
                    known[key] = step.item
            elif step.node and isinstance(pod := known.get((Pod, step.pod)), Pod):
                known[Pod, step.pod] = pod.bound_to(step.node)
        return tuple(known.values())


def is_recording(path: Path) -> bool:
    """Whether a file is one, by its name or by how it begins; manifests are .yaml, .yml and .json."""
    if path.name.endswith((".jsonl", ".gz")) or not path.is_file():
        return path.name.endswith((".jsonl", ".gz"))
    with path.open("rb") as file:
        return file.read(len(_HEADER_PREFIX)) == _HEADER_PREFIX


# writing ----------------------------------------------------------------------------------------------------------


def write_recording(path: Path, recording: Recording) -> None:
    """Write it; what was there before is replaced when all of it is written, and not earlier."""
    fresh = _temporary_path(path)
    with _explain_write_errors(path, fresh):
        with fresh.open("wb") as file, _compressed_file(file, path) as out:
            for line in encode_lines(recording):
                out.write(line.encode() + b"\n")
        if fresh != path:
            fresh.replace(path)


def check_writable(path: Path) -> None:
    """Whether a file can be written there: asked before a cluster is followed for hours."""
    fresh = _temporary_path(path)
    with _explain_write_errors(path, fresh):
        if fresh != path:
            fresh.open("wb").close()


def _temporary_path(path: Path) -> Path:
    """Where it is written first; a device or a pipe is no file that could be replaced."""
    if path.is_dir():
        raise BayplanError(f"{path} cannot be written: it is a folder; name a file in it")
    return path if path.exists() and not path.is_file() else path.with_name(f".{path.name}.part")


@contextmanager
def _explain_write_errors(path: Path, fresh: Path) -> Iterator[None]:
    try:
        yield
    except OSError as fault:
        raise BayplanError(f"{path} cannot be written: {fault.strerror}; name a file in a folder of yours") from None
    finally:
        if fresh != path:
            with suppress(OSError):
                fresh.unlink()


def encode_lines(recording: Recording) -> Iterator[str]:
    """The lines of the file."""
    yield _json_line(msgspec.to_builtins(recording.header))
    for item in recording.objects:
        yield _json_line({"object": object_manifest(item)})
    for step in recording.decisions_and_changes():
        if isinstance(step, RecordedDecision):
            yield _json_line({"decision": msgspec.to_builtins(step)})
        else:
            when = {} if step.at is None else {"at": msgspec.to_builtins(step.at)}
            yield _json_line({"change": {**when, "goes" if step.gone else "comes": _encode_change(step)}})
    yield _json_line({"end": msgspec.to_builtins(_end_line(recording.objects, recording.decisions, recording.changes))})


def _end_line(objects: Sized, verdicts: Sized, changes: Sized) -> _EndLine:
    return _EndLine(objects=len(objects), decisions=len(verdicts), changes=len(changes))


def _encode_change(change: RecordedChange) -> dict[str, Any]:
    """Of what is gone nothing but its name is told."""
    if not change.gone:
        return object_manifest(change.item)
    kind, meta = kind_of(type(change.item)), change.item.metadata
    names = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}
    return {
        "apiVersion": kind.api_versions[0],
        "kind": kind.name,
        "metadata": {key: text for key, text in names.items() if text},
    }


def object_manifest(item: KubeObject) -> dict[str, Any]:
    """An object as a manifest of what is known about it."""
    kind = kind_of(type(item))
    return {"apiVersion": kind.api_versions[0], "kind": kind.name, **msgspec.to_builtins(item)}


def _json_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@contextmanager
def _compressed_file(file: IO[bytes], path: Path) -> Iterator[IO[bytes]]:
    if path.suffix != ".gz":
        yield file
        return
    # Neither a name nor a time goes in: what is equal is equal byte for byte.
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
        yield packed  # type: ignore[misc]


# reading ----------------------------------------------------------------------------------------------------------


def read_recording(path: Path) -> Recording:
    """The recording of a file; `RecordingError` names the line, the field and what was expected."""
    header: RecordingHeader | None = None
    end: _EndLine | None = None
    objects: list[KubeObject] = []
    verdicts: list[RecordedDecision] = []
    changes: list[RecordedChange] = []
    number = 0
    for number, text in _read_numbered_lines(path):
        tree = _parse_line(path, number, text)
        if header is None:
            header = _header(path, number, tree)
        elif end is not None:
            raise RecordingError(path, number, "something follows the end; expected nothing more")
        elif "object" in tree:
            objects.append(_object(path, number, "object", tree["object"]))
        elif "decision" in tree:
            verdicts.append(_convert_part(path, number, tree, "decision", RecordedDecision))
        elif "change" in tree:
            changes.append(_change(path, number, tree["change"], after=len(verdicts)))
        elif "end" in tree:
            end = _convert_part(path, number, tree, "end", _EndLine)
        else:
            keys = ", ".join(tree) or "nothing"
            raise RecordingError(path, number, f"it holds {keys}; expected object, decision, change or end")
    if header is None:
        raise RecordingError(path, 1, 'the file is empty; expected {"recording": 1, ...}')
    if end is None:
        raise RecordingError(path, number + 1, 'the file ends here, so it was cut; expected {"end": ...}')
    found = _end_line(objects, verdicts, changes)
    if end != found:
        raise RecordingError(
            path, number, f"end: the file holds {_describe_counts(found)}; expected {_describe_counts(end)}"
        )
    return Recording(header, tuple(objects), tuple(verdicts), tuple(changes))


def _describe_counts(end: _EndLine) -> str:
    counts = f"objects {end.objects} and decisions {end.decisions}"
    return f"{counts} and changes {end.changes}" if end.changes else counts


def _read_numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        with path.open("rb") as file:
            packed = file.peek(2)[:2] == b"\x1f\x8b"
            stream = gzip.GzipFile(fileobj=file, mode="rb") if packed else file
            for number, text in enumerate(io.TextIOWrapper(stream, encoding="utf-8"), 1):
                if text.strip():
                    yield number, text
    except UnicodeDecodeError:
        raise RecordingError(path, number + 1, "it is no text; expected UTF-8, or a name that ends in .gz") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as fault:
        raise RecordingError(path, number + 1, f"the packed file breaks off: {fault}; expected all of it") from None
    except OSError as fault:
        raise BayplanError(f"{path} cannot be read: {fault.strerror}; name a file of `bayplan record`") from None


def _parse_line(path: Path, number: int, text: str) -> dict[str, Any]:
    try:
        tree = json.loads(text)
    except ValueError as fault:
        raise RecordingError(path, number, f"it is no JSON: {fault}; expected one object a line") from None
    if not isinstance(tree, dict):
        raise RecordingError(path, number, "it is no JSON object; expected one with object, decision, change or end")
    return tree


def _header(path: Path, number: int, tree: dict[str, Any]) -> RecordingHeader:
    version = tree.get("recording")
    if version is None:
        raise RecordingError(path, number, 'no recording begins like this; expected {"recording": 1, ...}')
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
        told = f"{key}: " if key else ""
        field = re.search(r"(unknown|missing required) field `(\w+)`", str(fault))
        if field is None:
            raise RecordingError(path, number, f"{told}{decode_error_text(str(fault))}") from None
        known = ", ".join(struct.__struct_encode_fields__)
        how = "is missing" if field[1] != "unknown" else "is no field of it"
        raise RecordingError(path, number, f"{told}{field[2]} {how}; expected some of {known}") from None


def _change(path: Path, number: int, tree: Any, after: int) -> RecordedChange:
    line = _convert_field(path, number, "change", tree, _ChangeLine)
    if (line.comes is None) == (line.goes is None):
        raise RecordingError(path, number, "change: it says not what happened; expected either comes or goes")
    field, raw = ("comes", line.comes) if line.comes is not None else ("goes", line.goes)
    return RecordedChange(_object(path, number, f"change.{field}", raw), line.goes is not None, line.at, after)


def _object(path: Path, number: int, key: str, raw: Any) -> KubeObject:
    api_version, name = (raw.get("apiVersion"), raw.get("kind")) if isinstance(raw, dict) else (None, None)
    if not isinstance(api_version, str) or not isinstance(name, str):
        raise RecordingError(path, number, f"{key}: it says not what it is; expected apiVersion and kind")
    try:
        kind = find_kind(api_version, name)
        if kind is None:
            raise RecordingError(
                path,
                number,
                f"{key}.kind: {name} of {api_version} is nothing a scheduler reads; expected a kind it does",
            )
        return convert(raw, kind.struct)
    except ObjectError as fault:
        raise RecordingError(path, number, f"{key}: {fault}") from None
