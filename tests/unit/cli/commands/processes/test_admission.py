"""`bayplan admission` before it serves: its certificate, and refused arguments."""

from __future__ import annotations

import asyncio
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bayplan.admission.webhooks import GPU_WEBHOOKS, webhooks_for
from bayplan.app.webhook_manager import (
    WebhookManagerOptions,
    ensure_certificate,
    register_webhooks,
    update_ca_bundles,
    webhook_manager_process,
    webhook_manifests,
)
from bayplan.certificates import VALIDITY, self_signed
from bayplan.client import Client, GroupVersionResource
from bayplan.errors import ApiError
from bayplan.objects.core import Pod
from bayplan.objects.kai.gpu_sharing import CONFIG_MAP_NAME as NAME
from bayplan.server.http.serving_tls import TlsOptions
from support.harness.async_tests import async_test
from support.harness.embedded_cluster import run_embedded_cluster
from support.harness.in_process_commands import CommandRunner
from support.harness.volcano_controllers import install_volcano_crds

CHART = [
    "--ca-cert-file=/admission.local.config/certificates/ca.crt",
    "--webhook-namespace=volcano-system",
    "--webhook-service-name=volcano-admission-service",
    "--scheduler-name=volcano",
    "--feature-gates=SchedulingGatesQueueAdmission=true",
    "--enable-healthz=true",
    "--enable-queue-allocated-pods-check=true",
    "--enable_root_queue_protection=false",
    "--graceful-shutdown-time=1m",
    "--kube-api-qps=50",
    "--kube-api-burst=100",
    "--logtostderr",
    "--port=0",
    "-v=4",
    "2>&1",
]
"""Flags of Volcano's chart for its webhook manager, and further ones."""


def test_a_valid_certificate_is_kept(tmp_path: Path) -> None:
    certificate, _ = ensure_certificate(tmp_path, ["10.0.0.5", "webhooks.ml.svc", "localhost"])
    first = certificate.read_text()
    ensure_certificate(tmp_path, ["localhost", "10.0.0.5"])
    assert certificate.read_text() == first


def test_a_certificate_for_another_address_is_renewed(tmp_path: Path) -> None:
    certificate, key = ensure_certificate(tmp_path, ["127.0.0.1"])
    before = certificate.read_text(), key.read_text()
    ensure_certificate(tmp_path, ["10.0.0.5", "127.0.0.1"])
    second = certificate.read_text()
    assert second != before[0]
    assert key.read_text() != before[1]
    ensure_certificate(tmp_path, ["10.0.0.5"])
    assert certificate.read_text() == second


@pytest.mark.parametrize("text", ["expired", "no certificate"])
def test_an_expired_or_invalid_certificate_is_renewed(text: str, tmp_path: Path) -> None:
    certificate, key = ensure_certificate(tmp_path, ["127.0.0.1"])
    if text == "expired":
        text = self_signed(["127.0.0.1"], datetime.now(UTC) - VALIDITY + timedelta(days=1)).certificate
    certificate.write_text(text)
    ensure_certificate(tmp_path, ["127.0.0.1"])
    assert certificate.read_text() != text
    assert key.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--webhook-url", "http://10.0.0.5:8443"], "'http://10.0.0.5:8443' is invalid; give https://HOST:PORT"),
        (["--webhook-url", "10.0.0.5:8443"], "'10.0.0.5:8443' is invalid; give https://HOST:PORT"),
        (["--webhook-url", "https://"], "'https://' is invalid; give https://HOST:PORT"),
        (["--webhook-url", "https://a:http"], "'https://a:http' is invalid; give https://HOST:PORT"),
        (["--webhook-url", "https://a..b:1"], "'https://a..b:1' is invalid; give https://HOST:PORT"),
        (["manifests", "--url", "webhooks:8443"], "--url: 'webhooks:8443' is invalid; give https://HOST:PORT"),
    ],
)
def test_an_invalid_address_is_an_error(
    run: CommandRunner, tmp_path: Path, arguments: list[str], expected: str
) -> None:
    result = run("admission", *(() if "manifests" in arguments else ("--cert-dir", tmp_path)), *arguments)
    assert (result.code, expected in result.text, "Traceback" in result.text) == (2, True, False)


@pytest.mark.parametrize(
    "conf", ["resourceGroups: 5", "- a", "resourceGroups: [a]", "resourceGroups: [{affinity: {nodeAffinity: {}}}]", "{"]
)
def test_an_invalid_configuration_is_an_error(run: CommandRunner, tmp_path: Path, conf: str) -> None:
    path = tmp_path / "admission.yaml"
    path.write_text(conf)
    result = run("admission", "--cert-dir", tmp_path, "--admission-conf", path)
    assert (result.code, "the admission configuration cannot be read" in result.text) == (1, True)


def test_the_flags_of_volcanos_chart_are_accepted(run: CommandRunner, tmp_path: Path) -> None:
    result = run("admission", "--cert-dir", tmp_path, *CHART, "--kubeconfig", "/nowhere")
    assert (result.code, "/nowhere" in result.text) == (1, True), result.text
    assert "--graceful-shutdown-time has no effect in Bayplan" in result.text


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        pytest.param("--feature-gates=Bogus=true", "unrecognized feature gate: Bogus", id="gate"),
        pytest.param("--enable-healthz=maybe", "invalid syntax", id="switch"),
        pytest.param("--nonsense", "unknown flag: --nonsense", id="flag"),
    ],
)
def test_an_invalid_flag_is_one_sentence(run: CommandRunner, flag: str, expected: str) -> None:
    result = run("admission", flag)
    assert (result.code, expected in result.text, "Traceback" in result.text) == (1, True, False)


@async_test
async def test_the_ca_is_written_into_existing_configurations(tmp_path: Path) -> None:
    webhooks = webhooks_for(["/pods/mutate", "/queues/validate"])
    name, space = "volcano-admission-service", "volcano-system"
    manifests = webhook_manifests(webhooks, url="", service=name, namespace=space, port=443, authority=b"")
    manifests[0]["webhooks"][0]["timeoutSeconds"] = 7  # a value that must stay
    async with run_embedded_cluster(tmp_path) as cluster, cluster.client() as client:
        update_task = asyncio.create_task(update_ca_bundles(client, webhooks, b"a CA"))
        await asyncio.sleep(0.1)  # a chart creates them last
        assert not update_task.done()
        await register_webhooks(client, manifests)
        await update_task
        kind = GroupVersionResource(
            "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", namespaced=False
        )
        found = (await client.get_raw(kind, "", f"{name}-pods-mutate"))["webhooks"][0]
        assert (found["clientConfig"]["caBundle"], found["timeoutSeconds"]) == ("YSBDQQ==", 7)


@async_test
async def test_probes_have_an_address_of_their_own(tmp_path: Path) -> None:
    certificate, key = ensure_certificate(tmp_path, ["127.0.0.1"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = WebhookManagerOptions(
        address="127.0.0.1",
        port=0,
        tls=TlsOptions(cert_file=str(certificate), key_file=str(key)),
        health_address=f"127.0.0.1:{port}",
    )
    async with run_embedded_cluster(tmp_path) as cluster, cluster.client() as client:
        await install_volcano_crds(client)
        async with webhook_manager_process(client.target, options):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
            assert (await reader.read()).endswith(b"ok")
            writer.close()


@async_test
async def test_gpu_webhooks_run_in_a_cluster_without_volcano(tmp_path: Path) -> None:
    """A cluster without Volcano has no queues: waiting for them would block forever."""
    certificate, key = ensure_certificate(tmp_path, ["127.0.0.1"])
    tls = TlsOptions(cert_file=str(certificate), key_file=str(key))
    options = WebhookManagerOptions(
        address="127.0.0.1", port=0, tls=tls, paths=[webhook.path for webhook in GPU_WEBHOOKS]
    )
    async with (
        asyncio.timeout(60),
        run_embedded_cluster(tmp_path) as cluster,
        cluster.client() as client,
        webhook_manager_process(client.target, options) as server,
    ):
        assert server.port


@async_test
async def test_an_embedded_cluster_has_the_gpu_webhooks_built_in(tmp_path: Path) -> None:
    manifests = webhook_manifests(GPU_WEBHOOKS, url="https://127.0.0.1:1", sharing=["bayplan"])
    async with run_embedded_cluster(tmp_path) as cluster, cluster.client() as client:
        await register_webhooks(client, webhook_manifests(GPU_WEBHOOKS, url="https://127.0.0.1:2", sharing=["foreign"]))
        await register_webhooks(client, manifests)  # again, with other schedulers
        own_pod, foreign_pod = [await _create_pod(client, each, "0.5") for each in ("bayplan", "foreign")]
        assert (NAME in own_pod.metadata.annotations, NAME in foreign_pod.metadata.annotations) == (True, False)
        await _create_pod(client, "foreign", "2")
        with pytest.raises(ApiError, match=r'"validategpus\.bayplan\.dev" denied the request: pod default/p-'):
            await _create_pod(client, "bayplan", "2")


async def _create_pod(client: Client, scheduler: str, fraction: str) -> Pod:
    """Create a pod with a GPU fraction."""
    body = {
        "metadata": {"generateName": "p-", "annotations": {"gpu-fraction": fraction}},
        "spec": {"schedulerName": scheduler, "containers": [{"name": "main", "image": "main"}]},
    }
    return await client.create_typed(Pod, body, namespace="default")


def test_the_manifests_have_the_named_schedulers(run: CommandRunner) -> None:
    webhooks = ("--enabled-admission", "/gpus/mutate", "--gpu-scheduler-name", "a", "--gpu-scheduler-name", "b")
    result = run("admission", "manifests", "--url", "https://10.0.0.5:8443", *webhooks)
    assert result.code == 0
    assert "bayplan.dev/scheduler-names: a,b" in result.text
    assert "object.spec.schedulerName in ['a', 'b']" in result.text
