"""Requests for certificates: whose they are, who decides on them, what they must hold."""

from __future__ import annotations

from base64 import b64encode

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bayplan.apiserver.api_errors import StatusError
from support.harness.apiserver_store import ApiserverStore, Tree

GROUP, KIND = "certificates.k8s.io", "CertificateSigningRequest"


def pem() -> str:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "jane")])
    made = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(name)
        .sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    )
    return b64encode(made.public_bytes(serialization.Encoding.PEM)).decode()


def request(**spec: object) -> Tree:
    asked = {"request": pem(), "signerName": "example.com/ours", "usages": ["client auth"], **spec}
    return {"apiVersion": f"{GROUP}/v1", "kind": KIND, "metadata": {"name": "r"}, "spec": asked}


def decide(world: ApiserverStore, *kinds: str, part: str = "approval") -> Tree:
    conditions = [{"type": kind, "status": "True"} for kind in kinds]
    write = world.write(KIND, GROUP)
    written = world.writer.update(
        type(write)(write.resource, "", write.user, write.options, write.manager, part),
        "r",
        lambda live: {**live, "spec": {**live["spec"], "username": "eve"}, "status": {"conditions": conditions}},
    )
    return written.tree


def test_a_request_is_its_makers_whatever_it_says() -> None:
    world = ApiserverStore()
    made = world.create({**request(username="somebody", groups=["all"]), "status": {"certificate": "QQ=="}}).tree
    assert (made["spec"]["username"], made["spec"]["groups"]) == ("admin", ["system:masters"])
    assert made["status"] == {}


def test_approving_changes_the_conditions_alone_and_says_when() -> None:
    world = ApiserverStore()
    world.create(request())
    decided = decide(world, "Approved")
    assert decided["spec"]["username"] == "admin"
    (condition,) = decided["status"]["conditions"]
    assert condition["type"] == "Approved"
    assert condition["lastUpdateTime"] == condition["lastTransitionTime"] == "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("part", "kinds", "told"),
    [
        pytest.param("approval", (), 'updates may not remove a condition of type "Approved"', id="taken back"),
        pytest.param("approval", ("Approved", "Denied"), "conditions are mutually exclusive", id="both"),
        pytest.param("status", ("Approved", "Denied"), 'may not add a condition of type "Denied"', id="by status"),
    ],
)
def test_a_decision_stands(part: str, kinds: tuple[str, ...], told: str) -> None:
    world = ApiserverStore()
    world.create(request())
    decide(world, "Approved")
    with pytest.raises(StatusError, match=told):
        decide(world, *kinds, part=part)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        pytest.param({"request": "bm8="}, "PEM block type must be CERTIFICATE REQUEST", id="no request"),
        pytest.param({"usages": []}, "spec.usages: Required value", id="for nothing"),
        pytest.param({"usages": ["juggling"]}, 'spec.usages.0.: Unsupported value: "juggling"', id="for nonsense"),
        pytest.param({"signerName": "nobody"}, "must be a fully qualified domain and path", id="by nobody"),
        pytest.param({"expirationSeconds": 5}, "may not specify a duration less than 600 seconds", id="for a moment"),
    ],
)
def test_what_is_wrong_with_a_request_is_told(spec: Tree, told: str) -> None:
    with pytest.raises(StatusError, match=told):
        ApiserverStore().create(request(**spec))
