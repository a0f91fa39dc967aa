"""Engines for the relay's tests: one process each, forked from one that has the imports done.

A program is a function of ``relay_programs`` that takes the traced model and returns values.
It runs in the engine's own process; what it returns, or what it died of, comes back.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, NamedTuple

import relay_faults
import torch

from conformance.engines import ENVIRONMENT, set_environment
from conformance.runner.processes import sessions, temporary
from tests.patience import PATIENCE

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


class ProgramError(Exception):
    """A program raised; ``kind`` and ``text`` are the exception's type name and message."""

    def __init__(self, kind: str, text: str, trace: str) -> None:
        super().__init__(f"{kind}: {text}\n{trace}")
        self.kind = kind
        self.text = text


class Spec(NamedTuple):
    """An engine: which tiny model, how it is split, and further engine arguments."""

    model: str
    pipeline: int = 1
    tensor: int = 1
    settings: tuple[tuple[str, Any], ...] = ()


class Engine:
    """A running engine, seen from the test."""

    def __init__(
        self, connection: Connection, pid: int, process: subprocess.Popen[bytes] | None = None
    ) -> None:
        self.connection = connection
        self.pid = pid
        #: Where this process started it, which is then the one that has to ask for its end.
        self.process = process
        # vLLM's CPU kernels never give theirs back.
        self.shared = sessions.shared_files(sessions.members(pid))

    def run(self, program: str, *args: Any, timeout: float = 60.0, **kwargs: Any) -> Any:
        """Run a program; raise ProgramError if it raised and TimeoutError if it hangs."""
        self.connection.send((program, args, kwargs))
        if not self.connection.poll(timeout):
            self.kill()
            raise TimeoutError(f"{program} did not end within {timeout} s")
        # Plain pickle: multiprocessing's own would share the tensors' memory instead.
        status, value = pickle.loads(self.connection.recv_bytes())
        if status == "error":
            raise ProgramError(*value)
        return value

    def kill(self) -> None:
        """End the engine's whole session, and what it had in shared memory."""
        sessions.kill(self.pid)
        sessions.unlink_shared(self.shared)

    def close(self) -> None:
        """Ask the engine to shut down and wait until its process is gone."""
        with suppress(OSError):
            self.connection.send(None)
            self.connection.close()
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if self.process is not None:
                self.process.poll()
            try:
                os.killpg(self.pid, 0)
            except ProcessLookupError:
                break
            time.sleep(0.05)
        self.kill()


class Lab:
    """Starts engines from one warm process and keeps them until it is closed."""

    def __init__(self) -> None:
        # A run's: what a killed one leaves goes when the next begins.
        self.owned = ExitStack()
        self.folder = self.owned.enter_context(temporary.folder())
        self.listener = Listener(str(self.folder / "socket"), family="AF_UNIX")
        self.environment = {
            # Some of it is read as soon as torch is imported.
            **ENVIRONMENT,
            **os.environ,
            "TMPDIR": str(self.folder),  # for vLLM's sockets
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE), os.environ.get("PYTHONPATH", "")]),
        }
        self.log = (self.folder / "log").open("wb")
        self.engines: dict[Spec, Engine] = {}
        # CUDA does not survive a fork: there each engine imports for itself.
        self.forks = not torch.cuda.is_available()
        if self.forks:
            self.process = self._start()
            self.zygote = self.listener.accept()

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, str(HERE / "relay_lab.py"), str(self.listener.address), *arguments],
            env=self.environment,
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )

    def engine(self, spec: Spec) -> Engine:
        """The engine of this description, started if it is not there."""
        if spec not in self.engines:
            process = None
            if self.forks:
                self.zygote.send((spec, str(self.folder)))
            else:
                process = self._start(pickle.dumps(spec).hex(), str(self.folder))
            connection = self.listener.accept()
            pid, error = connection.recv()
            if error:
                raise RuntimeError(error)
            self.engines[spec] = Engine(connection, pid, process)
        return self.engines[spec]

    def drop(self, spec: Spec, *, broken: bool = False) -> None:
        """End one engine; one that is broken is not asked to shut down in good order."""
        if spec in self.engines:
            engine = self.engines.pop(spec)
            engine.kill() if broken else engine.close()

    def close(self) -> None:
        """Close everything."""
        for spec in list(self.engines):
            self.drop(spec)
        if self.forks:
            self.zygote.send(None)
            self.process.wait(timeout=PATIENCE)
        self.listener.close()
        self.log.close()
        self.owned.close()


# -- the warm process and its children ---------------------------------------------------


def tokenizer() -> Any:
    from conformance.engines.building import checkpoint_builder

    return checkpoint_builder._train_tokenizer(512)


def build(name: str, folder: str) -> str:
    """A tiny random checkpoint, named family-layers, such as ``llama-4`` or ``gpt2-5``."""
    from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

    path = Path(folder) / name
    if Path(name).is_dir():
        return name
    if path.exists():
        return str(path)
    family, layers = name.split("-")
    common = {"vocab_size": 512, "initializer_range": 0.1, "bos_token_id": 1, "eos_token_id": 2}
    if family == "gpt2":
        config: Any = GPT2Config(
            n_embd=64, n_layer=int(layers), n_head=2, n_positions=256, **common
        )
    else:
        config = LlamaConfig(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=int(layers),
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=256,
            tie_word_embeddings=family == "tied",
            **common,
        )
    torch.manual_seed(7)
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(path)
    tokenizer().save_pretrained(path)
    return str(path)


def _serve_engine(spec: Spec, folder: str, address: str) -> None:
    os.setsid()
    sessions.die_with_parent()
    os.register_at_fork(after_in_child=sessions.die_with_parent)
    temporary.name_shared()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    connection = Client(address, family="AF_UNIX")
    try:
        from nnsight.modeling.vllm import VLLM

        from conformance.engines.vllm import client, patches
        from conformance.engines.vllm.patches import PatchPlace

        set_environment()
        client.prepare()
        asked = dict(spec.settings)
        fault = asked.pop("fault", None)
        if fault is not None:
            relay_faults.inject(fault)
        worker = client.worker_class(relay=asked.pop("relay", True) and spec.pipeline > 1)
        patches.apply(PatchPlace.CLIENT)
        patches.apply(PatchPlace.ENGINE, worker=worker)
        settings: dict[str, Any] = {
            "dtype": "bfloat16",
            "kv_cache_memory_bytes": client.KV_CACHE_BYTES,
            "max_model_len": 128,
            "max_logprobs": -1,
            "max_num_seqs": 8,
            "gpu_memory_utilization": 0.05,
            "async_scheduling": False,
            "seed": 0,
            **asked,
        }
        model = VLLM(
            build(spec.model, folder),
            dispatch=True,
            pipeline_parallel_size=spec.pipeline,
            tensor_parallel_size=spec.tensor,
            **settings,
        )
    except BaseException:
        connection.send((os.getpid(), traceback.format_exc()))
        raise
    connection.send((os.getpid(), None))
    import relay_programs
    from nnsight.tracing.tracer import _local

    for program, args, kwargs in _requests(connection):
        try:
            result = ("value", getattr(relay_programs, program)(model, *args, **kwargs))
        except Exception as error:  # noqa: BLE001 - whatever it is, the test is told
            result = ("error", (type(error).__name__, str(error), traceback.format_exc()))
        if getattr(_local, "depth", 0):
            result = ("error", ("OpenScope", f"{program} left nnsight's scope open", ""))
        connection.send_bytes(pickle.dumps(result))
    client.close(model)
    os._exit(0)


def _requests(connection: Connection) -> Iterator[Any]:
    """What the other end sends, until it sends None or is gone."""
    with suppress(EOFError):
        yield from iter(connection.recv, None)


def main(address: str) -> None:
    """Import everything, then fork an engine for each description that arrives."""
    sessions.die_with_parent()
    from conformance.engines.vllm import client

    set_environment()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    client.import_everything()
    connection = Client(address, family="AF_UNIX")
    fork = multiprocessing.get_context("fork")
    # Nobody waits for the engines here; the system shall not keep them as zombies.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for spec, folder in _requests(connection):
        build(spec.model, folder)
        fork.Process(target=_serve_engine, args=(spec, folder, address)).start()
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[2:]:
        import relay_lab

        spec = pickle.loads(bytes.fromhex(sys.argv[2]))
        relay_lab._serve_engine(spec, sys.argv[3], sys.argv[1])
    else:
        main(sys.argv[1])
