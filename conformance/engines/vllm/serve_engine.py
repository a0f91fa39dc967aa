"""nnsight-serve over HTTP on the loopback: a client without weights, a server without scenarios.

The server is a child process of the worker. It runs nnsight's application as nnsight-serve does,
with one more route for the harness's RPC methods and for generating without nnsight. Only the
worker is served (see `serve_guard`).
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import torch
import uvicorn
from fastapi import Request, Response
from nnsight.modeling.vllm import VLLM
from nnsight.modeling.vllm.serve import http as nnsight_http
from nnsight.modeling.vllm.serve import server as nnsight_serve
from nnsight.modeling.vllm.serve.backend import LocalServeBackend
from nnsight.schema.request import RequestModel

from conformance.engines.vllm import client, patches
from conformance.engines.vllm.async_engine import ABORTED, SENT, AsyncEngine, AsyncModel, generated
from conformance.engines.vllm.engine import load
from conformance.engines.vllm.patches import PatchPlace
from conformance.engines.vllm.requests import NOT_ABORTED
from conformance.engines.vllm.serve_guard import (
    HEADER,
    LOOPBACK,
    Guarded,
    listen,
    new_secret,
    without_proxy,
)
from conformance.spec.records import Job

#: Seconds that a request waits for the engine's load, and then for a trace.
PATIENCE = 600.0
#: Seconds that the server has to end after the signal.
FAREWELL = 10.0


def serve(job: Job, listener: socket.socket, secret: str) -> None:
    """Load the engine in the server's process, then serve this socket until terminated."""
    model = load(job, mode="async")
    nnsight_serve.set_model(model)
    nnsight_serve.app.post("/conformance/{method}")(_ask)
    app = Guarded(nnsight_serve.app, secret, listener.getsockname()[1])
    config = uvicorn.Config(app, log_level="warning", access_log=False)
    # uvicorn raises the signal that ended it again. That would end this process before the engine's
    # own process, which holds what the worker waits for.
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        client.close(model)


async def _ask(method: str, request: Request) -> Response:
    """Call a method of the workers, or `generate` without a block; arguments and answer are
    pickled. An exception is returned as text.
    """
    args = pickle.loads(await request.body())  # noqa: S301 - only for the holder of the secret
    engine = nnsight_serve._ready().vllm_entrypoint
    try:
        if method == "generate":
            answer = await generated(engine, *args)
        else:
            answer = await engine.collective_rpc(method, args=args)
    except Exception as error:  # noqa: BLE001 - the worker raises any error again
        return Response(f"{type(error).__name__}: {error}", 500, media_type="text/plain")
    return Response(pickle.dumps(answer), media_type="application/octet-stream")


#: Seconds until a client that aborts disconnects; it receives nothing before the last token.
HANG_UP = 0.3


class DeferredServeBackend(LocalServeBackend):  # type: ignore[misc]
    """nnsight's client, waiting for the answer in a separate thread."""

    #: As many clients as the engine takes requests in a step.
    clients = ThreadPoolExecutor(max_workers=8)

    def __call__(self, tracer: Any) -> None:
        send = self._hang_up if len(SENT) in ABORTED else self._send
        SENT.append(self.clients.submit(send, RequestModel.serialize(tracer, compress=False)))

    def _hang_up(self, blob: bytes) -> dict[str, Any]:
        """Send the trace, and close the connection before the answer arrives. nnsight's source says
        "stock uvicorn does not cancel a handler on client disconnect": the request continues.
        """
        try:
            httpx.post(
                f"{self.host}/v1/nnsight/generate",
                content=blob,
                headers=nnsight_http.headers(self.api_key),
                timeout=httpx.Timeout(PATIENCE, read=HANG_UP),
            )
        except httpx.ReadTimeout:
            return {}
        raise RuntimeError(NOT_ABORTED)


class ServedModel(AsyncModel):
    """The `lm` object of a scenario whose traces go to a server."""

    #: The server's address and secret; class attributes, so that a serialized block does not
    #: contain them.
    url = ""
    secret = ""

    def way(self) -> dict[str, Any]:
        return {"serve": ServedModel.url, "api_key": ServedModel.secret}

    def send(self, prompt: Any, steps: int = 1, stop: int | None = None) -> Any:
        backend = DeferredServeBackend(self.model, ServedModel.url, api_key=ServedModel.secret)
        return self.model.trace(prompt, backend=backend, **self.asking(steps, stop))

    def answers(self) -> list[Any]:
        sent = SENT.copy()
        SENT.clear()
        return [answer.exception() or answer.result() for answer in sent]

    def rpc(self, method: str, *args: Any) -> list[Any]:
        reply = _ask_server("POST", f"conformance/{method}", content=pickle.dumps(args))
        if reply.is_server_error:
            raise RuntimeError(reply.text)
        reply.raise_for_status()
        answers: list[Any] = pickle.loads(reply.content)  # noqa: S301 - our own server
        return answers

    def submit(self, prompts: Sequence[str | Sequence[int]], asked: Any) -> list[Any]:
        return self.rpc("generate", list(prompts), asked)

    def edit(self) -> Any:
        return self.model.edit(**self.way())


def _ask_server(method: str, path: str, content: bytes | None = None) -> httpx.Response:
    headers = {HEADER: ServedModel.secret}
    url = f"{ServedModel.url}/{path}"
    return httpx.request(method, url, content=content, headers=headers, timeout=PATIENCE)


class ServedEngine(AsyncEngine):
    kind = ServedModel

    def load(self) -> Any:
        """Start the server, and return a client's model without weights."""
        without_proxy()
        listener, self.reserved = listen()
        ServedModel.url = f"http://{LOOPBACK}:{listener.getsockname()[1]}"
        ServedModel.secret = new_secret()
        # A forked process has all imports done, but cannot use CUDA.
        context: Any = multiprocessing.get_context("spawn" if torch.cuda.is_available() else "fork")
        self.server = context.Process(target=serve, args=(self.job, listener, ServedModel.secret))
        self.server.start()
        # Only this copy: if the server dies, requests are then refused instead of waiting for ever.
        listener.close()
        try:
            _ask_server("GET", "health").raise_for_status()
        except httpx.TransportError as error:
            words = "the server ended while it loaded; the root cause is above"
            raise RuntimeError(words) from error
        patches.apply(PatchPlace.CLIENT)
        return VLLM(str(self.job.checkpoint), dtype=self.job.precision.dtype)

    def front(self) -> str:
        described = _ask_server("GET", "openapi.json").raise_for_status().json()
        return str(described["info"]["title"])

    def close(self) -> None:
        self.server.terminate()
        self.server.join(FAREWELL)
        if self.server.is_alive():
            self.server.kill()
            self.server.join()
        self.reserved.close()


def open_engine(job: Job) -> ServedEngine:
    client.prepare(streaming=True)
    return ServedEngine(job)
