"""`bayplan admission` before it serves: whose certificate it shows, and what it refuses in one sentence."""

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
from bayplan.client import Client, GroupVersionResource
from bayplan.errors import ApiError
from bayplan.objects.core import Pod
from bayplan.objects.kai.gpu_sharing import CONFIG_MAP_NAME as NAME
from bayplan.server.http.self_signed import VALIDITY, self_signed
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
"""What Volcano's chart gives its webhook manager, and what else that takes."""


def test_a_certificate_is_kept_as_long_as_it_will_do(tmp_path: Path) -> None:
    certificate, _ = ensure_certificate(tmp_path, ["10.0.0.5", "webhooks.ml.svc", "localhost"])
    first = certificate.read_text()
    ensure_certificate(tmp_path, ["localhost", "10.0.0.5"])
    assert certificate.read_text() == first


def test_a_certificate_for_another_address_is_made_anew(tmp_path: Path) -> None:
    certificate, key = ensure_certificate(tmp_path, ["127.0.0.1"])
    before = certificate.read_text(), key.read_text()
    ensure_certificate(tmp_path, ["10.0.0.5", "127.0.0.1"])
    second = certificate.read_text()
    assert second != before[0]
    assert key.read_text() != before[1]
    ensure_certificate(tmp_path, ["10.0.0.5"])
    assert certificate.read_text() == second


@pytest.mark.parametrize("text", ["over", "no certificate"])
def test_a_certificate_that_is_over_or_none_is_made_anew(text: str, tmp_path: Path) -> None:
    certificate, key = ensure_certificate(tmp_path, ["127.0.0.1"])
    if text == "over":
        text = self_signed(["127.0.0.1"], datetime.now(UTC) - VALIDITY + timedelta(days=1)).certificate
    certificate.write_text(text)
    ensure_certificate(tmp_path, ["127.0.0.1"])
    assert certificate.read_text() != text
    assert key.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--webhook-url", "http://10.0.0.5:8443"], "'http://10.0.0.5:8443' is invalid; give https://HOST:PORT"),
        (["--webhook-url", "10.0.0.5:8443"], "'10.0.0.5:8443' is invalid; give https://HOST:PORT"),
        (["--webhook-url", "https://"], "'https://' is invalid; give https://HOST:PORT"),
        (["--webhook-url", "https://a:http"], "'https://a:http' is invalid; give https://HOST:PORT"),
        (["--webhook-url", "https://a..b:1"], "'https://a..b:1' is invalid; give https://HOST:PORT"),
        (["manifests", "--url", "webhooks:8443"], "--url: 'webhooks:8443' is invalid; give https://HOST:PORT"),
    ],
)
def test_an_address_that_is_none_is_told(run: CommandRunner, tmp_path: Path, arguments: list[str], said: str) -> None:
    told = run("admission", *(() if "manifests" in arguments else ("--cert-dir", tmp_path)), *arguments)
    assert (told.code, said in told.text, "Traceback" in told.text) == (2, True, False)


@pytest.mark.parametrize(
    "conf", ["resourceGroups: 5", "- a", "resourceGroups: [a]", "resourceGroups: [{affinity: {nodeAffinity: {}}}]", "{"]
)
def test_a_configuration_that_cannot_be_read_is_told(run: CommandRunner, tmp_path: Path, conf: str) -> None:
    path = tmp_path / "admission.yaml"
    path.write_text(conf)
    told = run("admission", "--cert-dir", tmp_path, "--admission-conf", path)
    assert (told.code, "the admission configuration cannot be read" in told.text) == (1, True)


def test_the_flags_of_volcanos_chart_are_taken(run: CommandRunner, tmp_path: Path) -> None:
    told = run("admission", "--cert-dir", tmp_path, *CHART, "--kubeconfig", "/nowhere")
    assert (told.code, "/nowhere" in told.text) == (1, True), told.text
    assert "--graceful-shutdown-time has no effect in Bayplan" in told.text


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        pytest.param("--feature-gates=Bogus=true", "unrecognized feature gate: Bogus", id="gate"),
        pytest.param("--enable-healthz=maybe", "invalid syntax", id="switch"),
        pytest.param("--nonsense", "unknown flag: --nonsense", id="flag"),
    ],
)
def test_a_flag_that_cannot_be_meant_is_one_sentence(run: CommandRunner, flag: str, said: str) -> None:
    told = run("admission", flag)
    assert (told.code, said in told.text, "Traceback" in told.text) == (1, True, False)


@async_test
async def test_registrations_of_others_are_told_who_signed_our_certificate(tmp_path: Path) -> None:
    doors = webhooks_for(["/pods/mutate", "/queues/validate"])
    name, space = "volcano-admission-service", "volcano-system"
    made = webhook_manifests(doors, url="", service=name, namespace=space, port=443, authority=b"")
    made[0]["webhooks"][0]["timeoutSeconds"] = 7  # somebody has chosen so
    async with run_embedded_cluster(tmp_path) as cluster, cluster.client() as client:
        telling = asyncio.create_task(update_ca_bundles(client, doors, b"a CA"))
        await asyncio.sleep(0.1)  # a chart makes them when everything else is there
        assert not telling.done()
        await register_webhooks(client, made)
        await telling
        kind = GroupVersionResource(
            "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", namespaced=False
        )
        found = (await client.get_raw(kind, "", f"{name}-pods-mutate"))["webhooks"][0]
        assert (found["clientConfig"]["caBundle"], found["timeoutSeconds"]) == ("YSBDQQ==", 7)


@async_test
async def test_probes_are_answered_on_an_address_of_their_own(tmp_path: Path) -> None:
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
async def test_a_cluster_without_volcano_has_the_webhooks_for_pods_that_share_gpus(tmp_path: Path) -> None:
    """Nobody brings queues there: who waited for them would never listen."""
    certificate, key = ensure_certificate(tmp_path, ["127.0.0.1"])
    tls = TlsOptions(cert_file=str(certificate), key_file=str(key))
    options = WebhookManagerOptions(address="127.0.0.1", port=0, tls=tls, paths=[door.path for door in GPU_WEBHOOKS])
    async with (
        asyncio.timeout(60),
        run_embedded_cluster(tmp_path) as cluster,
        cluster.client() as client,
        webhook_manager_process(client.target, options) as server,
    ):
        assert server.port


@async_test
async def test_an_embedded_cluster_knows_the_webhooks_and_whose_pods_they_are_about(tmp_path: Path) -> None:
    made = webhook_manifests(GPU_WEBHOOKS, url="https://127.0.0.1:1", sharing=["bayplan"])
    async with run_embedded_cluster(tmp_path) as cluster, cluster.client() as client:
        await register_webhooks(
            client, webhook_manifests(GPU_WEBHOOKS, url="https://127.0.0.1:2", sharing=["somebody"])
        )
        await register_webhooks(client, made)  # once more: the schedulers are others now
        ours, theirs = [await _made(client, each, "0.5") for each in ("bayplan", "somebody")]
        assert (NAME in ours.metadata.annotations, NAME in theirs.metadata.annotations) == (True, False)
        await _made(client, "somebody", "2")
        with pytest.raises(ApiError, match=r'"validategpus\.bayplan\.dev" denied the request: pod default/p-'):
            await _made(client, "bayplan", "2")


async def _made(client: Client, scheduler: str, fraction: str) -> Pod:
    """A new pod that wants a part of a GPU."""
    body = {
        "metadata": {"generateName": "p-", "annotations": {"gpu-fraction": fraction}},
        "spec": {"schedulerName": scheduler, "containers": [{"name": "main", "image": "main"}]},
    }
    return await client.create_typed(Pod, body, namespace="default")


def test_the_registrations_are_printed_for_named_schedulers(run: CommandRunner) -> None:
    doors = ("--enabled-admission", "/gpus/mutate", "--gpu-scheduler-name", "a", "--gpu-scheduler-name", "b")
    told = run("admission", "manifests", "--url", "https://10.0.0.5:8443", *doors)
    assert told.code == 0
    assert "bayplan.dev/scheduler-names: a,b" in told.text
    assert "object.spec.schedulerName in ['a', 'b']" in told.text
