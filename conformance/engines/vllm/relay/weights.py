"""Weights of modules on another stage, fetched when a block uses them.

Weights do not change, so they can be fetched at any point of a step. Each stage serves them from a
thread, over a local socket, and fetched weights are cached until the next case.
"""

from __future__ import annotations

import os
import threading
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import torch

from conformance.engines.vllm.relay.placeholders import Tree
from conformance.engines.vllm.relay.record import decode, encode, parted
from conformance.engines.vllm.relay.transport import RankPipeline


class RemoteWeightError(RuntimeError):
    """A block used a weight that lives on another stage and could not be fetched."""


def _serve(listener: Listener, modules: dict[str, torch.nn.Module]) -> None:
    while True:
        try:
            with listener.accept() as connection:
                path, name = connection.recv()
                module = modules.get(path, torch.nn.Module())
                found: torch.Tensor | None = module._parameters.get(name)
                if found is None:
                    found = module._buffers.get(name)
                data = b"" if found is None else encode(found.data.cpu()).whole.numpy().tobytes()
                connection.send_bytes(data)
        except (OSError, EOFError):
            continue


class Owners:
    """Which stage holds each module, and fetching of its weights."""

    def __init__(self, column: RankPipeline, tree: Tree, device: torch.device) -> None:
        self.device = device
        listener = Listener(None, authkey=None, backlog=16)
        threading.Thread(
            target=_serve, args=(listener, tree.here), daemon=True, name="relay-weights"
        ).start()
        address = (os.uname().nodename, listener.address)
        gathered: list[Any] = column.gather((sorted(tree.here), tree.spanning, address))
        self.spanning: list[frozenset[str]] = [spanning for _, spanning, _ in gathered]
        self.addresses = [address for *_, address in gathered]
        self.stage_of: dict[str, int] = {}
        for stage, (paths, *_) in enumerate(gathered):
            for path in paths:
                self.stage_of.setdefault(path, stage)
        self._kept: dict[tuple[str, str], torch.Tensor] = {}

    def fetch(self, path: str, name: str) -> torch.Tensor:
        """Return a parameter or buffer of the module at ``path``, on this stage's device."""
        if (path, name) not in self._kept:
            self._kept[path, name] = self._ask(path, name).to(self.device)
        return self._kept[path, name]

    def forget(self) -> None:
        """Drop all fetched weights, since a block may have written to them."""
        self._kept.clear()

    def _ask(self, path: str, name: str) -> torch.Tensor:
        stage = self.stage_of.get(path)
        if stage is None:
            raise RemoteWeightError(f"no stage holds '{path}'")
        host, address = self.addresses[stage]
        if host != os.uname().nodename:
            raise RemoteWeightError(f"{path}.{name} lives on stage {stage}, on another machine")
        connection: Connection
        with Client(address) as connection:
            connection.send((path, name))
            data = connection.recv_bytes()
        if not data:
            raise RemoteWeightError(f"{path}.{name} lives on stage {stage}, which lacks it")
        value: torch.Tensor = decode(parted(torch.frombuffer(bytearray(data), dtype=torch.uint8)))
        return value
