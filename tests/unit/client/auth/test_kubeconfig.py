"""Kubeconfigs in their usual forms, merged as kubectl merges them, and errors that contain no secret."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from bayplan.client.auth.connection_config import ConnectionConfig, in_cluster_config, load_connection_config
from bayplan.client.auth.kubeconfig import load_merged, read_kubeconfig
from bayplan.errors import KubeconfigError

SECRET = "s3cr3t-t0k3n"
CLUSTER = {"server": "https://10.0.0.1:6443"}


def config(
    user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None, *, name: str = "one", **sections: Any
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": cluster or CLUSTER}],
        "users": [{"name": name, "user": user or {"token": SECRET}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    } | sections


def write_config(folder: Path, content: Any, name: str = "config") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def load(path: Path, **sections: Any) -> ConnectionConfig:
    return load_connection_config(path, env={}, **sections)


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_the_current_context_is_used(tmp_path: Path) -> None:
    target = load(write_config(tmp_path, config()))
    assert target.server == "https://10.0.0.1:6443"
    assert target.token.reveal() == SECRET
    assert target.namespace == "default"
    assert target.verify


def test_a_context_can_be_selected(tmp_path: Path) -> None:
    both = config()
    both["clusters"].append({"name": "two", "cluster": {"server": "https://two"}})
    both["contexts"].append({"name": "two", "context": {"cluster": "two", "user": "one", "namespace": "team"}})
    target = load(write_config(tmp_path, both), context="two")
    assert (target.server, target.namespace) == ("https://two:443", "team")


def test_yaml_values_are_read_as_kubectl_reads_them(tmp_path: Path) -> None:
    text = """
apiVersion: v1
kind: Config
current-context: one
clusters:
- {name: one, cluster: {server: "https://h", insecure-skip-tls-verify: yes, tls-server-name: other}}
contexts:
- name: one
  context: {cluster: one, user: one}
users:
- name: one
  user:
    token: abc
preferences: {}
"""
    target = load(write_config(tmp_path, text))
    assert (target.verify, target.server_name) == (False, "other")


def test_inline_certificates_are_decoded(tmp_path: Path) -> None:
    user = {"client-certificate-data": b64("CERT"), "client-key-data": b64("KEY")}
    cluster = {**CLUSTER, "certificate-authority-data": b64("CA")}
    target = load(write_config(tmp_path, config(user, cluster)))
    assert (target.cert_data, target.key_data.reveal(), target.authority()) == (b"CERT", "KEY", b"CA")


def test_relative_paths_start_at_the_folder_of_the_kubeconfig(tmp_path: Path) -> None:
    folder = tmp_path / "deep"
    folder.mkdir()
    for name in ("ca.crt", "me.crt", "me.key", "token"):
        (folder / name).write_text(name)
    user = {"client-certificate": "me.crt", "client-key": "../deep/me.key", "tokenFile": str(folder / "token")}
    target = load(write_config(folder, config(user, {**CLUSTER, "certificate-authority": "./ca.crt"})))
    assert Path(target.cert_file) == folder / "me.crt"
    assert Path(target.key_file).resolve() == folder / "me.key"
    assert Path(target.token_file) == folder / "token"
    assert target.authority() == b"ca.crt"


def test_an_exec_command_with_a_slash_starts_at_the_folder_of_the_kubeconfig(tmp_path: Path) -> None:
    exec_ = {"command": "bin/login", "apiVersion": "client.authentication.k8s.io/v1"}
    target = load(write_config(tmp_path, config({"exec": exec_})))
    assert target.exec is not None
    assert target.exec.command == str(tmp_path / "bin/login")
    target = load(write_config(tmp_path, config({"exec": {**exec_, "command": "login"}})))
    assert target.exec is not None
    assert target.exec.command == "login"


def test_inline_data_has_priority_over_files(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("file")
    user = {
        "client-certificate": "x",
        "client-certificate-data": b64("C"),
        "client-key": "x",
        "client-key-data": b64("K"),
    }
    target = load(
        write_config(
            tmp_path, config(user, {**CLUSTER, "certificate-authority": "x", "certificate-authority-data": b64("A")})
        )
    )
    assert (target.cert_file, target.key_file, target.ca_file) == ("", "", "")


def test_impersonation_becomes_headers(tmp_path: Path) -> None:
    user = {
        "token": "t",
        "as": "jane",
        "as-uid": "7",
        "as-groups": ["a", "b"],
        "as-user-extra": {"acme.com/team x": ["q"]},
    }
    assert load(write_config(tmp_path, config(user))).impersonate == (
        ("Impersonate-User", "jane"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-acme.com%2Fteam%20x", "q"),
    )


def test_the_first_file_with_an_entry_wins(tmp_path: Path) -> None:
    first = config({"token": "first"}, {"server": "https://first"})
    del first["current-context"]
    second = config({"username": "u", "password": "p"}, {"server": "https://second", "proxy-url": "http://p"})
    second["users"].append({"name": "extra", "user": {"token": "x"}})
    paths = [write_config(tmp_path, first, "a"), tmp_path / "missing", write_config(tmp_path, second, "b")]
    target = load_connection_config(env={"KUBECONFIG": os.pathsep.join(map(str, [*paths, paths[0]]))})
    assert target.server == "https://first:443"
    assert (target.token.reveal(), target.username, target.proxy) == ("first", "", "")  # entries are not mixed
    assert set(load_merged(paths).users) == {"one", "extra"}
    both = [write_config(tmp_path, first | {"current-context": "ours"}, "a"), paths[2]]
    assert load_merged(both).current_context == "ours"
    assert load_merged(reversed(both)).current_context == "one"
    assert load_merged(paths).origin("users", "extra").startswith(str(paths[2]))


def test_the_kubeconfig_of_the_home_folder_is_used_last(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    write_config(tmp_path / ".kube", config())
    assert load_connection_config(env={"HOME": str(tmp_path)}).token.reveal() == SECRET


def service_account(folder: Path) -> Path:
    for name, content in {"token": "sa-token\n", "ca.crt": "CA", "namespace": "kube-system\n"}.items():
        (folder / name).write_text(content)
    return folder


IN_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def test_a_pod_uses_its_service_account(tmp_path: Path) -> None:
    target = load_connection_config(env=IN_POD, service_account=service_account(tmp_path))
    assert (target.server, target.namespace) == ("https://10.96.0.1:443", "kube-system")
    assert target.token_file == str(tmp_path / "token")
    assert target.authority() == b"CA"


def test_ipv6_addresses_get_brackets(tmp_path: Path) -> None:
    pod_config = in_cluster_config({**IN_POD, "KUBERNETES_SERVICE_HOST": "fd00::1"}, service_account(tmp_path))
    assert pod_config is not None
    assert pod_config.server == "https://[fd00::1]:443"


def test_a_kubeconfig_has_priority_over_the_service_account(tmp_path: Path) -> None:
    env = IN_POD | {"KUBECONFIG": str(write_config(tmp_path, config()))}
    assert load_connection_config(env=env, service_account=service_account(tmp_path)).token.reveal() == SECRET


def test_the_server_address_can_be_replaced(tmp_path: Path) -> None:
    target = load(write_config(tmp_path, config()), server="https://other:1")
    assert (target.server, target.token.reveal()) == ("https://other:1", SECRET)
    assert load_connection_config(env={}, server="localhost:8080").server == "http://localhost:8080"


def without(tree: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in tree.items() if name != key}


EXEC = {"command": "login", "apiVersion": "client.authentication.k8s.io/v1"}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param("kind: Config\nusers: a: b: " + SECRET, ["config", "not YAML", "line"], id="no-yaml"),
        pytest.param(f"- {SECRET}", ["not a mapping", "apiVersion"], id="a-list"),
        pytest.param(f"users: {{a: !!int {SECRET}}}", ["not YAML"], id="a-tag-that-quotes-its-value"),
        pytest.param({"users": "x"}, ["users is not a list"], id="section-is-text"),
        pytest.param({"users": [{"user": {"token": SECRET}}]}, ["users[0]", "name"], id="entry-without-name"),
        pytest.param(config({"token": 12345}), ["users[one].user", "token", "str"], id="number-for-token"),
        pytest.param(config({"token": [SECRET]}), ["users[one].user", "token"], id="list-for-token"),
        pytest.param(config({"exec": SECRET}), ["users[one].user", "exec"], id="text-for-exec"),
        pytest.param(without(config(), "current-context"), ["no current-context", "one"], id="no-context"),
        pytest.param(config() | {"current-context": "x"}, ["no context 'x'", "one"], id="unknown-context"),
        pytest.param(config() | {"current-context": 5}, ["current-context", "text"], id="context-is-a-number"),
        pytest.param(without(config(), "clusters"), ["contexts[one]", "no cluster 'one'"], id="unknown-cluster"),
        pytest.param(without(config(), "users"), ["contexts[one]", "no user 'one'"], id="unknown-user"),
        pytest.param(config(cluster={"tls-server-name": "x"}), ["clusters[one]", "no server"], id="no-server"),
        pytest.param(config(cluster={"server": "ftp://x"}), ["clusters[one]", "not an address"], id="bad-server"),
        pytest.param(config(cluster={"server": "https://x:y"}), ["not an address"], id="bad-port"),
        pytest.param(config(cluster={"server": "my cluster"}), ["not an address"], id="words-for-a-server"),
        pytest.param(without(config(), "current-context") | {"contexts": []}, ["no contexts"], id="no-contexts"),
        pytest.param(
            config(cluster={**CLUSTER, "certificate-authority": "nowhere"}),
            ["clusters[one].certificate-authority", "nowhere", "No such file"],
            id="no-authority-file",
        ),
        pytest.param(
            config(cluster={**CLUSTER, "certificate-authority-data": "%%"}),
            ["certificate-authority-data", "not base64"],
            id="authority-is-not-base64",
        ),
        pytest.param(
            config(cluster={**CLUSTER, "certificate-authority-data": b64("x"), "insecure-skip-tls-verify": True}),
            ["insecure-skip-tls-verify", "keep one"],
            id="insecure-with-authority",
        ),
        pytest.param(config({"client-certificate-data": b64("x")}), ["client-key"], id="certificate-without-key"),
        pytest.param(
            config({"client-certificate-data": b64("x"), "client-key-data": SECRET + "!"}),
            ["users[one].client-key-data", "not base64"],
            id="key-is-not-base64",
        ),
        pytest.param(config({"tokenFile": "gone"}), ["users[one].tokenFile", "gone"], id="no-token-file"),
        pytest.param(config({"exec": {**EXEC, "command": ""}}), ["exec", "no command"], id="exec-without-command"),
        pytest.param(
            config({"exec": {**EXEC, "apiVersion": "client.authentication.k8s.io/v1alpha1"}}),
            ["exec.apiVersion", "v1alpha1", "client.authentication.k8s.io/v1"],
            id="exec-too-old",
        ),
        pytest.param(config({"exec": {**EXEC, "interactiveMode": "Always"}}), ["Always"], id="exec-wants-a-person"),
        pytest.param(config({"exec": {**EXEC, "interactiveMode": "Sometimes"}}), ["interactiveMode"], id="exec-mode"),
        pytest.param(
            config({"auth-provider": {"name": "oidc", "config": {"id-token": SECRET}}}),
            ["auth-provider", "exec"],
            id="provider",
        ),
        pytest.param(config({"token": "t", "as-groups": ["g"]}), ["as-groups", "add the user"], id="groups-of-nobody"),
        pytest.param(config({"token": "t", "as": "a\nb"}), ["line break"], id="header-injection"),
    ],
)
def test_errors_name_file_key_and_remedy_but_no_secret(tmp_path: Path, content: Any, expected: list[str]) -> None:
    path = write_config(tmp_path, content)
    with pytest.raises(KubeconfigError) as caught:
        load(path)
    text = str(caught.value)
    assert [word for word in expected if word not in text] == [], text
    assert SECRET not in text
    assert "config" in text


def test_a_given_kubeconfig_must_exist(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match=r"nowhere: No such file .*name a file that exists"):
        load(tmp_path / "nowhere")


def test_an_empty_kubeconfig_has_no_context(tmp_path: Path) -> None:
    path = write_config(tmp_path, "")
    assert read_kubeconfig(path).empty
    with pytest.raises(KubeconfigError, match="no current-context and no contexts"):
        load(path)


def test_the_error_without_any_configuration_names_the_remedy() -> None:
    with pytest.raises(KubeconfigError, match="name a kubeconfig"):
        load_connection_config(env={})


def test_no_repr_contains_a_secret(tmp_path: Path) -> None:
    user = {
        "token": SECRET,
        "password": SECRET,
        "username": "u",
        "client-key-data": b64(SECRET),
        "client-certificate-data": b64("x"),
        "exec": {**EXEC, "args": [SECRET], "env": [{"name": "A", "value": SECRET}]},
        "auth-provider": {"config": {"id-token": SECRET}},
    }
    path = write_config(tmp_path, config(user))
    text = (
        repr(read_kubeconfig(path)) + repr(load(path)) + str(load(path)) + repr(read_kubeconfig(path).users["one"].exec)
    )
    assert SECRET not in text
    assert b64(SECRET) not in text
