"""CertificateSigningRequests: requesting user, approval and validation."""

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
    created = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(name)
        .sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    )
    return b64encode(created.public_bytes(serialization.Encoding.PEM)).decode()


def request(**spec: object) -> Tree:
    fields = {"request": pem(), "signerName": "example.com/ours", "usages": ["client auth"], **spec}
    return {"apiVersion": f"{GROUP}/v1", "kind": KIND, "metadata": {"name": "r"}, "spec": fields}


def decide(world: ApiserverStore, *kinds: str, part: str = "approval") -> Tree:
    conditions = [{"type": kind, "status": "True"} for kind in kinds]
    write = world.write(KIND, GROUP)
    written = world.writer.update(
        type(write)(write.resource, "", write.user, write.options, write.manager, part),
        "r",
        lambda live: {**live, "spec": {**live["spec"], "username": "eve"}, "status": {"conditions": conditions}},
    )
    return written.tree


def test_the_server_sets_user_and_status_of_a_new_request() -> None:
    world = ApiserverStore()
    created = world.create({**request(username="mallory", groups=["all"]), "status": {"certificate": "QQ=="}}).tree
    assert (created["spec"]["username"], created["spec"]["groups"]) == ("admin", ["system:masters"])
    assert created["status"] == {}


def test_an_approval_changes_only_conditions_and_sets_their_times() -> None:
    world = ApiserverStore()
    world.create(request())
    decided = decide(world, "Approved")
    assert decided["spec"]["username"] == "admin"
    (condition,) = decided["status"]["conditions"]
    assert condition["type"] == "Approved"
    assert condition["lastUpdateTime"] == condition["lastTransitionTime"] == "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("part", "kinds", "message"),
    [
        pytest.param("approval", (), 'updates may not remove a condition of type "Approved"', id="taken back"),
        pytest.param("approval", ("Approved", "Denied"), "conditions are mutually exclusive", id="both"),
        pytest.param("status", ("Approved", "Denied"), 'may not add a condition of type "Denied"', id="by status"),
    ],
)
def test_a_decision_cannot_be_changed(part: str, kinds: tuple[str, ...], message: str) -> None:
    world = ApiserverStore()
    world.create(request())
    decide(world, "Approved")
    with pytest.raises(StatusError, match=message):
        decide(world, *kinds, part=part)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param({"request": "bm8="}, "PEM block type must be CERTIFICATE REQUEST", id="no request"),
        pytest.param({"usages": []}, "spec.usages: Required value", id="no usages"),
        pytest.param({"usages": ["juggling"]}, 'spec.usages.0.: Unsupported value: "juggling"', id="unknown usage"),
        pytest.param({"signerName": "signer"}, "must be a fully qualified domain and path", id="unqualified signer"),
        pytest.param({"expirationSeconds": 5}, "may not specify a duration less than 600 seconds", id="too short"),
    ],
)
def test_an_invalid_request_is_refused(spec: Tree, message: str) -> None:
    with pytest.raises(StatusError, match=message):
        ApiserverStore().create(request(**spec))
