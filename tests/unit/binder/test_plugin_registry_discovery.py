"""How a class of a folder is known as the binder's plugin, and what is said of one that nobody would call."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayplan.app import known_plugins
from bayplan.app.binder import known_binder_plugins
from bayplan.errors import PluginError


def written(folder: Path, *methods: str) -> Path:
    """A folder with one class of these methods."""
    body = "".join(f"    {each}: pass\n" for each in methods)
    (folder / "mine.py").write_text(f'class Mine:\n    name = "mine"\n{body}')
    return folder


@pytest.mark.parametrize(
    "method",
    [
        pytest.param("async def pre_bind(self, ctx, pod, node, request, state)", id="another name"),
        pytest.param("async def pre_bind(self, a, b, c, d, e)", id="no name of ours"),
        pytest.param("async def post_bind(self, ctx, *_)", id="any number, beginning as ours"),
        pytest.param("async def pre_bind(self, ctx, pod, node, bind_request, state, limit=3)", id="one more"),
    ],
)
def test_whatever_the_parameters_are_called(tmp_path: Path, method: str) -> None:
    assert "mine" in known_binder_plugins([written(tmp_path, method)], trust_writable=True).classes
    assert "mine" not in known_plugins([tmp_path], trust_writable=True)


@pytest.mark.parametrize(
    "methods",
    [
        pytest.param(["async def pre_bind(self, cycle, node_name)"], id="as it is called"),
        pytest.param(["async def post_bind(self, c, n)"], id="other names"),
        pytest.param(["async def post_bind(self, cycle, *_)"], id="any number, beginning as the scheduler's"),
        pytest.param(["def filter(self, cycle, node)", "async def post_bind(self, *_)"], id="of other points"),
    ],
)
def test_what_is_the_schedulers_stays_the_schedulers(tmp_path: Path, methods: list[str]) -> None:
    assert "mine" not in known_binder_plugins([written(tmp_path, *methods)], trust_writable=True).classes
    assert "mine" in known_plugins([tmp_path], trust_writable=True)


@pytest.mark.parametrize(
    ("method", "shown"),
    [
        pytest.param("async def post_bind(self, pod)", r"post_bind\(self, pod\)", id="too few"),
        pytest.param(
            "async def pre_bind(self, pod, node)", r"pre_bind\(self, pod, node\)", id="a pod, as nobody has it"
        ),
        pytest.param("async def pre_bind(self, *args)", r"pre_bind\(self, \*args\)", id="any number"),
    ],
)
def test_a_method_that_does_not_tell_who_calls_it_is_refused(tmp_path: Path, method: str, shown: str) -> None:
    folder = written(tmp_path, method)
    stage = shown.split("\\")[0]
    words = (
        rf'plugin "mine" \(Mine in .*mine\.py\) has {shown}, which fits neither engine: the binder calls '
        rf"{stage}\(self, ctx, pod, node, bind_request, state\), the scheduler {stage}\(self, cycle, node_name\)"
    )
    for known in (known_binder_plugins, known_plugins):
        with pytest.raises(PluginError, match=words):
            known([folder], trust_writable=True)


def test_a_plain_method_is_known_and_told_that_it_is_awaited(tmp_path: Path) -> None:
    folder = written(tmp_path, "def pre_bind(self, ctx, pod, node, request, state)")
    with pytest.raises(PluginError, match='binder plugin "mine" has a plain pre_bind; it is awaited'):
        known_binder_plugins([folder], trust_writable=True)
