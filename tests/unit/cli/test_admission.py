"""`bayplan admission` before it serves: whose certificate it shows, and what it refuses in one sentence."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bayplan.app.admission import own_certificate
from bayplan.server.certificates import VALID, self_signed
from command_runs import Run


def test_a_certificate_is_kept_as_long_as_it_will_do(tmp_path: Path) -> None:
    certificate, _ = own_certificate(tmp_path, ["10.0.0.5", "webhooks.ml.svc", "localhost"])
    first = certificate.read_text()
    own_certificate(tmp_path, ["localhost", "10.0.0.5"])
    assert certificate.read_text() == first


def test_a_certificate_for_another_address_is_made_anew(tmp_path: Path) -> None:
    certificate, key = own_certificate(tmp_path, ["127.0.0.1"])
    before = certificate.read_text(), key.read_text()
    own_certificate(tmp_path, ["10.0.0.5", "127.0.0.1"])
    second = certificate.read_text()
    assert second != before[0]
    assert key.read_text() != before[1]
    own_certificate(tmp_path, ["10.0.0.5"])
    assert certificate.read_text() == second


@pytest.mark.parametrize("text", ["over", "no certificate"])
def test_a_certificate_that_is_over_or_none_is_made_anew(text: str, tmp_path: Path) -> None:
    certificate, key = own_certificate(tmp_path, ["127.0.0.1"])
    if text == "over":
        text = self_signed(["127.0.0.1"], datetime.now(UTC) - VALID + timedelta(days=1)).certificate
    certificate.write_text(text)
    own_certificate(tmp_path, ["127.0.0.1"])
    assert certificate.read_text() != text
    assert key.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--webhook-url", "http://10.0.0.5:8443"], "'http://10.0.0.5:8443' is no https://HOST:PORT"),
        (["--webhook-url", "10.0.0.5:8443"], "'10.0.0.5:8443' is no https://HOST:PORT"),
        (["--webhook-url", "https://"], "'https://' is no https://HOST:PORT"),
        (["--webhook-url", "https://a:http"], "'https://a:http' is no https://HOST:PORT"),
        (["--webhook-url", "https://a..b:1"], "'https://a..b:1' is no https://HOST:PORT"),
        (["manifests", "--url", "webhooks:8443"], "--url: 'webhooks:8443' is no https://HOST:PORT"),
    ],
)
def test_an_address_that_is_none_is_told(run: Run, tmp_path: Path, arguments: list[str], said: str) -> None:
    told = run("admission", *(() if "manifests" in arguments else ("--cert-dir", tmp_path)), *arguments)
    assert (told.code, said in told.text, "Traceback" in told.text) == (2, True, False)


@pytest.mark.parametrize(
    "conf", ["resourceGroups: 5", "- a", "resourceGroups: [a]", "resourceGroups: [{affinity: {nodeAffinity: {}}}]", "{"]
)
def test_a_configuration_that_cannot_be_read_is_told(run: Run, tmp_path: Path, conf: str) -> None:
    path = tmp_path / "admission.yaml"
    path.write_text(conf)
    told = run("admission", "--cert-dir", tmp_path, "--admission-conf", path)
    assert (told.code, "the admission configuration cannot be read" in told.text) == (1, True)
