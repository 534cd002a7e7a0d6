"""The end-to-end suite, on the embedded API server, on a real kube-apiserver, or on both in turn.

    pytest -m e2e tests/e2e --cluster=both

A part of it, `quick`, runs on the embedded server with every other test.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser.fetch import reason_to_do_without
from cluster.api import Api
from cluster.build import cache_folder
from cluster.embedded import Embedded
from cluster.run import Cluster
from support.e2e.kubectl_sessions import Terminal
from support.e2e.scheduler_harness import SchedulerHarness
from support.harness.deadlines import DEADLINE_S

HERE = Path(__file__).parent
KINDS = ("embedded", "real")
QUICK = frozenset({"test_client_credentials", "test_python_client"})
"""Modules with tests that are quick enough for every run, and need no program of Kubernetes."""
QUICK_WITH_KUBECTL = frozenset({"test_client_writes", "test_scheduler_extenders"})
"""The same, if kubectl was built before."""


IN_BROWSER = frozenset({"test_page_in_browser", "test_page_of_queues"})
"""Modules whose tests need Chromium."""
LEFT_OUT = pytest.StashKey[str]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _leave_out_the_browser(config, items)
    quick = QUICK | QUICK_WITH_KUBECTL if (cache_folder() / "kubectl").exists() else QUICK
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("soak") is None:
            item.add_marker(pytest.mark.e2e)
            item.name = _without_cluster(item.name)
            if item.path.stem in quick:
                item.add_marker(pytest.mark.quick)


def _leave_out_the_browser(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without Chromium its tests are skipped, and the end of the run reports them."""
    mine = [item for item in items if item.path.stem in IN_BROWSER]
    if mine and (why := reason_to_do_without()):
        config.stash[LEFT_OUT] = f"{len(mine)} tests of the page in a browser were LEFT OUT: {why}"
        config.hook.pytest_deselected(items=mine)
        items[:] = [item for item in items if item.path.stem not in IN_BROWSER]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    message = config.stash.get(LEFT_OUT, "")
    asked = any("e2e" in str(each) for each in (config.getoption("-m"), *config.args))
    if not message and asked and (why := reason_to_do_without()):  # a worker counts, the main process reports
        message = f"tests of the page in a browser were LEFT OUT: {why}"
    if message:
        terminalreporter.write_line(message, red=True)


def _without_cluster(name: str) -> str:
    """Names of nodes and namespaces come from the test, without the parameter for the cluster."""
    for kind in KINDS:
        name = name.replace(f"[{kind}]", "").replace(f"[{kind}-", "[")
    return name


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test on each requested cluster; all tests of one cluster first."""
    if "cluster" in metafunc.fixturenames:
        asked = metafunc.config.getoption("--cluster")
        kinds = list(KINDS) if asked == "both" else [asked]
        metafunc.parametrize("cluster", kinds, indirect=True, scope="session", ids=kinds)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One cluster for the whole run; tests use separate names and namespaces."""
    make = Embedded if request.param == "embedded" else Cluster
    with make(tmp_path_factory.mktemp("cluster"), users=["limited"]) as running:
        yield running


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """A namespace for the test."""
    name = request.node.name.lower().replace("_", "-").replace("[", "-").rstrip("]")[:60].strip("-")
    Api(cluster, name).create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return str(name)


@pytest.fixture
def harness(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[SchedulerHarness]:
    """Nodes and pods for the test."""
    mine = SchedulerHarness(cluster, namespace, tmp_path)
    yield mine
    mine.close()


CONTROLLERS = (
    *("clusterrole-aggregation-controller", "garbage-collector-controller", "namespace-controller"),
    *("persistentvolume-protection-controller", "persistentvolumeclaim-protection-controller"),
    *("root-ca-certificate-publisher-controller", "serviceaccount-controller"),
)
"""Controllers that run within the embedded API server; in a real cluster the controller manager runs them."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Terminal, Terminal]]:
    """Two kubectl terminals: one for the embedded server, one for a real one."""
    folder = tmp_path_factory.mktemp("both")
    with Embedded(folder / "ours") as ours, Cluster(folder / "real") as real:
        real.run(
            "kube-controller-manager",
            f"--kubeconfig={real.kubeconfig()}",
            f"--controllers={','.join(CONTROLLERS)}",
            "--leader-elect=false",
            f"--root-ca-file={real.ca_file}",
            f"--service-account-private-key-file={real.folder / 'accounts.key'}",
            "--secure-port=0",
        )
        for furniture in ("serviceaccount/default", "configmap/kube-root-ca.crt"):
            real.kubectl("wait", furniture, "--for=create", f"--timeout={DEADLINE_S:.0f}s")
        typing = Terminal(ours), Terminal(real)
        yield typing
        for each in typing:
            each.close()
