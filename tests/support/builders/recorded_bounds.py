"""Tables of the last value that a field accepts and the first one that it refuses.

Each row changes one field of a recorded manifest, which is valid: (path, accepted, refused, words of the field error),
and the field of the error if it is not the path. Keys of a table are Kind/name of the manifests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from support.builders.manifest_mutations import apply_mutation
from support.builders.recorded_objects import create, identity_of, recorded

Row = tuple[Any, ...]


def cases(table: Mapping[str, Sequence[Row]]) -> list[Any]:
    """The parameters of a test: manifest, path, accepted, refused, words, field."""
    found = []
    for name, rows in table.items():
        for number, (path, accepted, refused, words, *field) in enumerate(rows):
            named = field[0] if field else re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", path)
            case = (name, path, accepted, refused, words, named)
            found.append(pytest.param(*case, id=f"{name.partition('/')[0]}-{number}-{path}"))
    return found


def faults(name: str, path: str, value: Any) -> list[tuple[str, str]]:
    """Field and message of each field error of a recorded manifest with one field changed."""
    items = [each["item"] for each in recorded()]
    item = next(each for each in items if f"{each['kind']}/{each['metadata'].get('name')}" == name)
    steps = tuple(int(each) if each.isdigit() else each for each in path.split("."))
    answer = create(apply_mutation(item, steps, value), identity_of(()))
    return [] if isinstance(answer, dict) else [(field, message) for field, _, message in answer]


def assert_faults(name: str, path: str, value: Any, expected: Sequence[str]) -> None:
    """Assert that a changed manifest has exactly these field errors. The words are parts of "field: message"."""
    found = [f"{field}: {message}" for field, message in faults(name, path, value)]
    unexplained = [each for each in found if not any(_says(each, words) for words in expected)]
    unseen = [words for words in expected if not any(_says(each, words) for each in found)]
    assert (unexplained, unseen) == ([], []), found


def _says(fault: str, words: str) -> bool:
    """Whether all words are in an error; between field and message it has the value."""
    return all(part in fault for part in words.split(": ", 1))
