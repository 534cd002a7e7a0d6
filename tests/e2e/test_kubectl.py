"""kubectl on our API server and on a real one: the same commands print the same, save for ages, ids and versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.embedded import Embedded
from cluster.run import Cluster
from kubectl_sessions import Terminal, read_session

SESSIONS = sorted((Path(__file__).parent / "sessions").glob("*.txt"))


CONTROLLERS = (
    *("clusterrole-aggregation-controller", "garbage-collector-controller", "namespace-controller"),
    *("persistentvolume-protection-controller", "persistentvolumeclaim-protection-controller"),
    *("root-ca-certificate-publisher-controller", "serviceaccount-controller"),
)
"""What our server does beside answering; in a real cluster the controller manager does it."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Terminal, Terminal]]:
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
            real.kubectl("wait", furniture, "--for=create", "--timeout=50s")
        typing = Terminal(ours), Terminal(real)
        yield typing
        for each in typing:
            each.close()


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in SESSIONS])
def test_a_session(both: tuple[Terminal, Terminal], path: Path) -> None:
    ours, real = both
    differences = []
    for step in read_session(path):
        told, expected = ours.run(step), real.run(step)
        if told != expected:
            differences.append(f"$ {step}\n{told}\n-- instead of\n{expected}")
    assert not differences, "\n\n".join(differences)
