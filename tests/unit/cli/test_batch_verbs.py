"""`bayplan queue`, `job`, `podgroup`, `crds` and `admission` explain themselves."""

from __future__ import annotations

import pytest

from bayplan.cli import main


@pytest.mark.parametrize(
    "verb",
    [
        *(("queue", each) for each in ("list", "get", "create", "operate", "delete")),
        *(("job", each) for each in ("list", "view", "run", "suspend", "resume", "delete")),
        *(("podgroup", each) for each in ("list", "view", "delete")),
        *(("queue",), ("job",), ("podgroup",), ("crds",), ("admission",), ("admission", "manifests")),
    ],
    ids=" ".join,
)
def test_help_has_examples(verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    main([*verb, "--help"])
    _, found, examples = capsys.readouterr().out.partition("Examples:\n")
    assert found
    assert f"bayplan {' '.join(verb)}" in examples.partition("Options:")[0]
