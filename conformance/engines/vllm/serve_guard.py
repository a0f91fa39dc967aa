"""Access control of the served engine: only the worker that started it may use it.

Like any server that runs traces, nnsight's unpickles its requests, so anyone who reaches it, such
as another local user or a web page in a local browser, runs code as the user. Before a request's
body is read, the request must carry this load's secret, be addressed to the loopback by number (a
page whose name resolves to the loopback is not), and have no Origin header.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
App = Callable[[Message, Any, Any], Awaitable[None]]

LOOPBACK = "127.0.0.1"

#: The header that carries the `api_key` of nnsight's client.
HEADER = "ndif-api-key"


def new_secret() -> str:
    return secrets.token_urlsafe(32)


class Guarded:
    """An ASGI application that answers 403 to every request without the secret."""

    def __init__(self, app: App, secret: str, port: int) -> None:
        self._app = app
        self._secret = secret.encode()
        self._host = f"{LOOPBACK}:{port}".encode()

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or (scope["type"] == "http" and self._known(scope)):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 403, "headers": []})
            await send({"type": "http.response.body", "body": b"not yours\n"})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _known(self, scope: Message) -> bool:
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        secrets_sent = headers.get(HEADER.encode(), [])
        peer = scope.get("client") or ("", 0)
        return (
            len(secrets_sent) == 1
            and hmac.compare_digest(secrets_sent[0], self._secret)
            and headers.get(b"host") == [self._host]
            and b"origin" not in headers
            and peer[0] == LOOPBACK
        )


def listen() -> tuple[socket.socket, socket.socket]:
    """Return a socket that listens on a free loopback port, and one that reserves the port.

    The client keeps the second. When the server ends, requests are refused at once, but no other
    user's process can take the port and pretend to be the server.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind((LOOPBACK, 0))
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(reserved.getsockname())
    listener.listen()
    return listener, reserved


def without_proxy(environment: MutableMapping[str, str] = os.environ) -> None:
    """Make this process's HTTP clients connect to the loopback directly: a proxy would learn the
    secret.
    """
    for name in ("no_proxy", "NO_PROXY"):
        hosts = [host for host in environment.get(name, "").split(",") if host]
        environment[name] = ",".join(dict.fromkeys([*hosts, LOOPBACK]))
