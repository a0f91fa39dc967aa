"""Nobody but the worker speaks to the served engine; of nobody else's request a byte is read."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
from pathlib import Path
from typing import Any

import pytest

from conformance.engines.vllm.serve_guard import Guarded, listen, new_secret, without_proxy

PORT = 4711
SECRET = new_secret()


class Plants:
    """Unpickled, it leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str, int]]:
        return os.open, (str(self.path), os.O_CREAT)


async def trusting(scope: Any, receive: Any, send: Any) -> None:
    """A server that unpickles whatever it is sent, as nnsight's does."""
    pickle.loads((await receive())["body"])
    await send({"type": "http.response.start", "status": 200, "headers": []})


def asked(
    headers: dict[str, str], body: bytes = b"", client: tuple[str, int] | None = ("127.0.0.1", 9)
) -> tuple[int, bool]:
    """The status, and whether the body was read."""
    sent, read = [], []

    async def receive() -> dict[str, Any]:
        read.append(True)
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    lines = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "headers": lines, "client": client}
    asyncio.run(Guarded(trusting, SECRET, PORT)(scope, receive, send))
    return sent[0]["status"], bool(read)


OURS = {"host": f"127.0.0.1:{PORT}", "ndif-api-key": SECRET}


def test_the_worker_is_served(tmp_path: Path) -> None:
    assert new_secret() != SECRET and len(SECRET) >= 32
    assert asked(OURS, pickle.dumps(Plants(tmp_path / "planted"))) == (200, True)
    assert (tmp_path / "planted").exists(), "the body plants nothing: nothing was tried"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": OURS["host"]},
        {**OURS, "ndif-api-key": ""},
        {**OURS, "ndif-api-key": SECRET[:-1]},
        {**OURS, "ndif-api-key": "ü"},
        {**OURS, "host": f"rebound.example:{PORT}"},
        {**OURS, "host": f"localhost:{PORT}"},
        {**OURS, "origin": "https://example.org"},
    ],
)
def test_nobody_else_is(headers: dict[str, str], tmp_path: Path) -> None:
    body = pickle.dumps(Plants(tmp_path / "planted"))
    assert asked(headers, body) == (403, False)
    assert not (tmp_path / "planted").exists()


@pytest.mark.parametrize("client", [("10.1.2.3", 9), None])
def test_nor_anybody_from_elsewhere(client: tuple[str, int] | None) -> None:
    assert asked(OURS, client=client) == (403, False)


def test_the_port_stays_ours_when_the_server_ends() -> None:
    listener, reserved = listen()
    place = listener.getsockname()
    assert place[0] == "127.0.0.1"
    listener.close()
    with socket.socket() as client, pytest.raises(ConnectionRefusedError):
        client.connect(place)
    with socket.socket() as impostor, pytest.raises(OSError, match="in use"):
        impostor.bind(place)
    reserved.close()


def test_no_proxy_is_told_the_secret() -> None:
    environment = {"http_proxy": "http://proxy.example", "no_proxy": "a.example"}
    without_proxy(environment)
    assert environment["no_proxy"] == "a.example,127.0.0.1"
    assert environment["NO_PROXY"] == "127.0.0.1"
