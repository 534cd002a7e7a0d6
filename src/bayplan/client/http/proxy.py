"""Proxy of a server, and the tunnel through it.

The connection pool uses it when it opens a connection. The kubeconfig's `proxy-url` is used first, then HTTPS_PROXY,
HTTP_PROXY and NO_PROXY as Go reads them: never for loopback. Supported schemes: http, https and socks5.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import ssl
from collections.abc import Mapping
from urllib.parse import SplitResult, unquote, urlsplit

from bayplan.client.auth.connection_config import ConnectionConfig
from bayplan.errors import KubeconfigError, Unreachable

SCHEMES = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}


def proxy_for(target: ConnectionConfig, env: Mapping[str, str]) -> SplitResult | None:
    """Return the proxy to connect to, or None to connect to the server itself."""
    text = target.proxy or _from_environment(target.url, env)
    if not text:
        return None
    try:
        proxy = urlsplit(text if "://" in text else f"http://{text}")
        usable = proxy.scheme in SCHEMES and bool(proxy.hostname) and (proxy.port is None or proxy.port > 0)
    except ValueError:
        usable = False
    if not usable:
        where = f"{target.origin}.proxy-url" if target.proxy else "the proxy of the environment"
        raise KubeconfigError(f"{where} is not the address of a proxy; write one such as http://proxy.example:3128")
    return proxy


def _from_environment(url: SplitResult, env: Mapping[str, str]) -> str:
    names = ("HTTPS_PROXY", "https_proxy") if url.scheme == "https" else ("HTTP_PROXY", "http_proxy")
    text = next((env[name] for name in names if env.get(name)), "")
    host = url.hostname or ""
    if not text or host == "localhost" or _is_loopback(host):
        return ""
    no_proxy = env.get("NO_PROXY") or env.get("no_proxy") or ""
    return "" if any(_matches(each.strip().lower(), host, url.port) for each in no_proxy.split(",")) else text


def _matches(rule: str, host: str, port: int | None) -> bool:
    """Match one entry of NO_PROXY: *, an address, a network or a domain with its subdomains; the port is optional."""
    if rule in ("", "*"):
        return rule == "*"
    if "/" in rule:
        return _address(host) is not None and _in_network(host, rule)
    name, colon, wanted = rule.rpartition(":")
    if colon and wanted.isdecimal() and not _address(rule):
        if int(wanted) != port:
            return False
        rule = name.strip("[]")
    if rule.startswith("*."):
        rule = rule[1:]
    return host.endswith(rule) if rule.startswith(".") else host == rule or host.endswith(f".{rule}")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return address is not None and address.is_loopback


def _in_network(host: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


async def tunnel(proxy: SplitResult, host: str, port: int) -> asyncio.Transport:
    """Open a tunnel to the server through the proxy. The transport is paused and has no protocol yet."""
    reader = asyncio.StreamReader()
    secure = ssl.create_default_context() if proxy.scheme == "https" else None
    transport, _ = await asyncio.get_running_loop().create_connection(
        lambda: asyncio.StreamReaderProtocol(reader),
        proxy.hostname or "",
        proxy.port or SCHEMES[proxy.scheme],
        ssl=secure,
    )
    try:
        if proxy.scheme.startswith("socks5"):
            await _greet_socks(reader, transport, proxy, host, port)
        else:
            await _connect(reader, transport, proxy, host, port)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        transport.abort()
        raise Unreachable(f"the proxy {proxy.hostname} closed the connection instead of opening a tunnel") from None
    except BaseException:
        transport.abort()
        raise
    transport.pause_reading()
    return transport


async def _connect(
    reader: asyncio.StreamReader, writer: asyncio.Transport, proxy: SplitResult, host: str, port: int
) -> None:
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}"]
    if proxy.username:
        pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(pair.encode()).decode()}")
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
    head = await reader.readuntil(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].split(b" ")
    if len(status) < 2 or status[1] != b"200":
        code = status[1].decode("latin-1") if len(status) > 1 else "an invalid response"
        raise Unreachable(f"the proxy {proxy.hostname} answered {code} to CONNECT {authority}; ask its administrator")


async def _greet_socks(
    reader: asyncio.StreamReader, writer: asyncio.Transport, proxy: SplitResult, host: str, port: int
) -> None:
    """Handshake of RFC 1928, and RFC 1929 when there is a user. The proxy resolves the name."""
    writer.write(b"\x05\x01\x02" if proxy.username else b"\x05\x01\x00")
    version, method = await reader.readexactly(2)
    if version == 5 and method == 2 and proxy.username:
        user, password = unquote(proxy.username).encode(), unquote(proxy.password or "").encode()
        writer.write(b"\x01" + bytes([len(user)]) + user + bytes([len(password)]) + password)
        _, refused = await reader.readexactly(2)
        method = 255 if refused else 0
    if version != 5 or method not in (0, 2):
        raise Unreachable(f"the SOCKS proxy {proxy.hostname} refused the login; check the user and password of its URL")
    name = host.encode("idna")
    writer.write(b"\x05\x01\x00\x03" + bytes([len(name)]) + name + port.to_bytes(2, "big"))
    _, reply, _, kind = await reader.readexactly(4)
    if reply:
        raise Unreachable(f"the SOCKS proxy {proxy.hostname} answered {reply} to {host}:{port}; ask its administrator")
    length = {1: 4, 4: 16}.get(kind) or (await reader.readexactly(1))[0]
    await reader.readexactly(length + 2)
