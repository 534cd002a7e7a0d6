"""Makes `src/bayplan/objects/volcano/definitions.json.gz`, the shapes of Volcano's own kinds, from a Volcano release.

    go mod download volcano.sh/volcano@v1.15.1
    .venv/bin/python scripts/volcano/make_definitions.py "$(go env GOMODCACHE)/volcano.sh/volcano@v1.15.1"

What is taken are facts: groups, versions, names, printer columns, fields and their types and limits. Descriptions,
the bulk of the files, stay behind. A part that stands in several places (the template of a pod, in four kinds) is kept
once, under a number, and referred to by it.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

TARGET = Path(__file__).parent.parent.parent / "src/bayplan/objects/volcano/definitions.json.gz"
FOLDERS = ("installer/helm/chart/volcano/crd/bases", "installer/helm/chart/volcano/charts/jobflow/crd/bases")
LEFT_OUT = {"ColocationConfiguration"}
"""For a node agent, which is unrelated to scheduling."""
WORTH_SHARING = 120
"""Length of the JSON text below which a reference saves nothing."""


def main() -> None:
    """Read the release in the given folder, and write the table."""
    module = Path(sys.argv[1])
    found = [
        yaml.safe_load(path.read_text()) for folder in FOLDERS for path in sorted((module / folder).glob("*.yaml"))
    ]
    definitions = [bare(each) for each in found if each["spec"]["names"]["kind"] not in LEFT_OUT]
    definitions.sort(key=lambda each: str(each["metadata"]["name"]))
    table = json.dumps(shared(definitions), separators=(",", ":"), sort_keys=True)
    TARGET.write_bytes(gzip.compress(table.encode(), mtime=0))


def bare(definition: dict[str, Any]) -> dict[str, Any]:
    """A definition without generated annotations and without descriptions."""
    spec = definition["spec"]
    versions = [{**version, "schema": without_prose(version["schema"])} for version in spec["versions"]]
    return {
        "apiVersion": definition["apiVersion"],
        "kind": definition["kind"],
        "metadata": {"name": definition["metadata"]["name"]},
        "spec": {**spec, "versions": versions},
    }


def without_prose(schema: Any, *, names: bool = False) -> Any:
    """`names`: the keys of this object are names of fields, one of which may be called `description`."""
    if isinstance(schema, dict):
        return {
            key: without_prose(value, names=key == "properties" and not names)
            for key, value in schema.items()
            if names or key != "description"
        }
    return [without_prose(each) for each in schema] if isinstance(schema, list) else schema


def shared(definitions: list[dict[str, Any]]) -> dict[str, Any]:
    """The definitions with `{"$": number}` for repeated parts, and the parts by number."""
    uses: Counter[str] = Counter()

    def count(value: Any) -> None:
        if isinstance(value, dict | list):
            text = json.dumps(value, sort_keys=True)
            if len(text) >= WORTH_SHARING and isinstance(value, dict):
                uses[text] += 1
                if uses[text] > 1:
                    return  # nested parts are shared with it
            for each in value.values() if isinstance(value, dict) else value:
                count(each)

    parts: list[Any] = []
    numbers: dict[str, int] = {}

    def packed(value: Any) -> Any:
        if isinstance(value, list):
            return [packed(each) for each in value]
        if not isinstance(value, dict):
            return value
        text = json.dumps(value, sort_keys=True)
        if text in numbers:
            return {"$": numbers[text]}
        small = {key: packed(each) for key, each in value.items()}
        if uses[text] < 2:
            return small
        numbers[text] = len(parts)
        parts.append(small)
        return {"$": numbers[text]}

    count(definitions)
    return {"definitions": packed(definitions), "parts": parts}


if __name__ == "__main__":
    main()
