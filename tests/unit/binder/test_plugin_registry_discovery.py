"""Discovery of binder plugins in a folder: how classes are recognised, and which are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayplan.app import known_plugins
from bayplan.app.binder import known_binder_plugins
from bayplan.errors import PluginError


def write_plugin(folder: Path, *methods: str) -> Path:
    """Write a folder with one class that has these methods."""
    body = "".join(f"    {each}: pass\n" for each in methods)
    (folder / "mine.py").write_text(f'class Mine:\n    name = "mine"\n{body}')
    return folder


@pytest.mark.parametrize(
    "method",
    [
        pytest.param("async def pre_bind(self, ctx, pod, node, request, state)", id="another name"),
        pytest.param("async def pre_bind(self, a, b, c, d, e)", id="other names"),
        pytest.param("async def post_bind(self, ctx, *_)", id="any number, beginning with ctx"),
        pytest.param("async def pre_bind(self, ctx, pod, node, bind_request, state, limit=3)", id="one more"),
    ],
)
def test_binder_plugins_are_recognised_by_their_parameters(tmp_path: Path, method: str) -> None:
    assert "mine" in known_binder_plugins([write_plugin(tmp_path, method)], trust_writable=True).classes
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
def test_plugins_of_the_pod_engine_are_no_binder_plugins(tmp_path: Path, methods: list[str]) -> None:
    assert "mine" not in known_binder_plugins([write_plugin(tmp_path, *methods)], trust_writable=True).classes
    assert "mine" in known_plugins([tmp_path], trust_writable=True)


@pytest.mark.parametrize(
    ("method", "shown"),
    [
        pytest.param("async def post_bind(self, pod)", r"post_bind\(self, pod\)", id="too few"),
        pytest.param("async def pre_bind(self, pod, node)", r"pre_bind\(self, pod, node\)", id="parameters of neither"),
        pytest.param("async def pre_bind(self, *args)", r"pre_bind\(self, \*args\)", id="any number"),
    ],
)
def test_a_method_with_ambiguous_parameters_is_refused(tmp_path: Path, method: str, shown: str) -> None:
    folder = write_plugin(tmp_path, method)
    stage = shown.split("\\")[0]
    words = (
        rf'plugin "mine" \(Mine in .*mine\.py\) has {shown}, which fits neither engine: the binder calls '
        rf"{stage}\(self, ctx, pod, node, bind_request, state\), the scheduler {stage}\(self, cycle, node_name\)"
    )
    for known in (known_binder_plugins, known_plugins):
        with pytest.raises(PluginError, match=words):
            known([folder], trust_writable=True)


def test_a_plain_method_is_recognised_and_refused(tmp_path: Path) -> None:
    folder = write_plugin(tmp_path, "def pre_bind(self, ctx, pod, node, request, state)")
    with pytest.raises(PluginError, match='binder plugin "mine" has a plain pre_bind; it is awaited'):
        known_binder_plugins([folder], trust_writable=True)
