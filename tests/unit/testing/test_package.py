"""The package `bayplan.testing`: lazy names, the pytest fixture, and the error for a missing extra."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points

import pytest

import bayplan.testing
from bayplan.testing import Harness, make_node, make_pod

pytest_plugins = ["pytester"]


@pytest.mark.parametrize("name", bayplan.testing.__all__)
def test_every_public_name_exists(name: str) -> None:
    assert callable(getattr(bayplan.testing, name))


def test_unknown_names_raise_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'make_planet'"):
        bayplan.testing.make_planet  # noqa: B018


def test_without_hypothesis_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    monkeypatch.delitem(sys.modules, "bayplan.testing.strategies", raising=False)
    with pytest.raises(ImportError, match=r"needs hypothesis, which is not installed: pip install bayplan\[testing\]"):
        import_module("bayplan.testing.strategies")


def test_the_fixture_builds_clusters(bayplan_cluster: Callable[..., Harness]) -> None:
    assert bayplan_cluster(nodes=[make_node("a")]).place(make_pod()) == "a"


def test_the_fixture_closes_its_clusters(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        class Holder:
            name = "Holder"
            closed = []
            def less(self, first, second): return False
            def close(self): Holder.closed.append(self)

        def test_use(bayplan_cluster):
            bayplan_cluster(plugins=[Holder]), bayplan_cluster([Holder])
            assert not Holder.closed

        def test_after(): assert len(Holder.closed) == 2
        """
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


def test_the_fixture_is_an_entry_point() -> None:
    (found,) = entry_points(group="pytest11", name="bayplan")
    assert found.value == "bayplan.testing.pytest_plugin"


def test_the_pytest_plugin_imports_no_heavy_modules() -> None:
    """Every pytest run on the machine imports the plugin; it must not import the scheduler."""
    code = "import sys, bayplan.testing.pytest_plugin; print(*{'numpy', 'msgspec', 'hypothesis'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "\n"
