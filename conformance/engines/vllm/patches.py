"""All monkey patches of torch, nnsight and vLLM: one list, applied by one function.

Look here first if an upgrade of one of them breaks something. Classes of built objects (an engine's
runner, its interleaver) are replaced where the object is used. This list covers attributes of other
packages' modules and classes.
"""

from __future__ import annotations

import asyncio
import copy
import importlib
import linecache
import logging
import multiprocessing
import os
import socket
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial, reduce
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

logger = logging.getLogger(__name__)

#: Milliseconds after which a process that waits for a message polls for it, since some of the
#: notifications get lost.
_UNASKED = 1

#: Seconds between two checks that a streaming engine's process still runs.
LOOK = 0.5


class PatchPlace(StrEnum):
    """The process in which a patch is applied, and when."""

    CLIENT = "the client, before it builds a model"
    NO_GPU = "the same where there is no GPU"
    FORKING = "a process that forks the executor's workers"
    ZYGOTE = "a zygote of a machine without a GPU"
    STREAMING = "a client whose engine streams its outputs"
    ENGINE = "the client, for the one engine that it builds next"
    WORKER = "every process of an engine, when its device is ready"
    RELAY = "every process of an engine whose stages are relayed"
    WHOLE_TREE = "the same, while it builds the tree of all stages"


@dataclass(frozen=True)
class Patch:
    """One attribute of another package and its replacement.

    `target` is `module:attribute`, with dots if the attribute belongs to a class. `replacement` is
    called with the original and the arguments of `apply`. `versions` is a version specifier of the
    target's package: the versions for which the reason holds.
    """

    target: str
    place: PatchPlace
    versions: str
    reason: str
    replacement: Callable[..., Any]

    @property
    def meant(self) -> bool:
        """Whether the patch applies to the installed version. A version without a number counts."""
        package = importlib.import_module(self.target.partition(":")[0].partition(".")[0])
        try:
            version = Version(package.__version__)
        except (AttributeError, InvalidVersion):
            return True
        return SpecifierSet(self.versions).contains(version, prereleases=True)


PATCHES: list[Patch] = []

_Replacement = TypeVar("_Replacement", bound=Callable[..., Any])


def _patches(
    *targets: str, place: PatchPlace, versions: str, reason: str
) -> Callable[[_Replacement], _Replacement]:
    """Add a patch of each target, with the decorated function or class as its replacement."""

    def add(replacement: _Replacement) -> _Replacement:
        PATCHES.extend(Patch(target, place, versions, reason, replacement) for target in targets)
        return replacement

    return add


@_patches(
    "torch:accelerator.synchronize",
    "torch:accelerator.empty_cache",
    place=PatchPlace.NO_GPU,
    versions=">=2.6",
    reason="vLLM's loader calls both in the client, and they raise where there is no accelerator",
)
def _idle(_: Any) -> Any:
    """Return a new function each time: dynamo distinguishes vLLM's two targets by identity."""

    def nothing(*_: Any, **__: Any) -> None:
        pass

    return nothing


@_patches(
    "vllm.model_executor.model_loader.base_loader:process_weights_after_loading",
    place=PatchPlace.CLIENT,
    versions=">=0.19",
    reason="nnsight's client builds the model on the meta device, for its structure alone, and "
    "vLLM goes on to pack its weights: with kernels that a meta tensor has not, of experts on any "
    "CPU and of latent attention on one with AMX",
)
def _unless_on_meta(original: Any) -> Any:
    def process(model: Any, model_config: Any, target_device: Any) -> None:
        on_meta = all(parameter.is_meta for parameter in model.parameters())
        if not on_meta and target_device.type != "meta":
            original(model, model_config, target_device)

    return process


@_patches(
    "torch.distributed.rendezvous:_create_c10d_store",
    place=PatchPlace.CLIENT,
    versions=">=2.4",
    reason="torch's store listens on every interface whatever host it is given, and nnsight's "
    "client opens one for its group of a single process",
)
def _on_its_host_alone(original: Any) -> Any:
    def create(hostname: str, port: int, rank: int, size: int, patience: Any, *more: Any) -> Any:
        if rank != 0 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            return original(hostname, port, rank, size, patience, *more)
        from torch._C._distributed_c10d import TCPStore

        family = socket.AF_INET6 if ":" in hostname else socket.AF_INET
        listener = socket.create_server((hostname, port), family=family)
        return TCPStore(
            hostname,
            listener.getsockname()[1],
            size,
            is_master=True,
            timeout=patience,
            multi_tenant=True,
            master_listen_fd=listener.detach(),
        )

    return create


@_patches(
    "vllm.renderers.hf:maybe_make_thread_pool",
    place=PatchPlace.CLIENT,
    versions=">=0.32",
    reason="vLLM copies a tokenizer twice at its start, 3 s each for the 262,144 tokens of "
    "Gemma-3; without that the pool makes a copy at the first use",
)
def _copied_on_use(original: Any) -> Any:
    return lambda tokenizer, copies=1: original(tokenizer, copies=0)


async def unless_dead(engine: Any, answer: Awaitable[Any]) -> Any:
    """Return the workers' answer; raise vLLM's EngineDeadError if the engine's process ended."""
    waiting = asyncio.ensure_future(answer)
    while not waiting.done():
        await asyncio.wait({waiting}, timeout=LOOK)
        if engine.errored and not waiting.done():
            waiting.cancel()
            raise engine.dead_error
    return await waiting


@_patches(
    "vllm.v1.engine.async_llm:AsyncLLM.collective_rpc",
    place=PatchPlace.STREAMING,
    versions=">=0.19",
    reason="vLLM lets whoever waits for an answer of the workers wait for ever once the process "
    "of its core has ended, and nnsight waits so for what a finished trace has saved",
)
def _answered_or_dead(original: Any) -> Any:
    async def collective_rpc(engine: Any, *args: Any, **more: Any) -> Any:
        return await unless_dead(engine, original(engine, *args, **more))

    return collective_rpc


#: References to the tasks, since a loop keeps none alive.
_WATCHING: set[asyncio.Future[None]] = set()


async def tell_of_the_end(engine: Any, collector: Callable[[], Any]) -> None:
    """Deliver vLLM's EngineDeadError to a request's output collector once the engine's process has
    ended. Returns when the collector no longer exists.
    """
    while (waited_for := collector()) is not None:
        if engine.errored:
            waited_for.put(engine.dead_error)
            return
        del waited_for
        await asyncio.sleep(LOOK)


@_patches(
    "vllm.v1.engine.async_llm:AsyncLLM.add_request",
    place=PatchPlace.STREAMING,
    versions=">=0.19",
    reason="a request that comes while the process of vLLM's core ends waits for ever for its "
    "first output, for the end was told to those alone that were there before it",
)
def _told_of_the_end(original: Any) -> Any:
    async def add_request(engine: Any, *args: Any, **more: Any) -> Any:
        collector = await unless_dead(engine, original(engine, *args, **more))
        watching = asyncio.ensure_future(tell_of_the_end(engine, weakref.ref(collector)))
        _WATCHING.add(watching)
        watching.add_done_callback(_WATCHING.discard)
        return collector

    return add_request


@_patches(
    "vllm.v1.executor.multiproc_executor:get_mp_context",
    "vllm.v1.engine.utils:get_mp_context",
    place=PatchPlace.FORKING,
    versions=">=0.19",
    reason="vLLM's CPU platform spawns its workers, and the process that holds a streaming "
    "engine's core, which import everything anew: 16 s instead of 2.6 s for two stages",
)
def _forking(_: Any) -> Any:
    context = multiprocessing.get_context("fork")
    return lambda: context


@_patches(
    "vllm.distributed.device_communicators.shm_broadcast:SpinCondition.wait",
    place=PatchPlace.FORKING,
    versions=">=0.19",
    reason="vLLM's processes wait for each other by asking without a pause, for a second after "
    "the last message: three of them on two cores take those from the one that computes. They are "
    "told of every message, and wait for that after the second; here they do at once",
)
def _woken(original: Any) -> Any:
    import zmq

    def wait(condition: Any, timeout_ms: int | None = None) -> None:
        if time.monotonic() > condition.last_read + condition.busy_loop_s:
            original(condition, timeout_ms)
        elif dict(condition.poller.poll(_UNASKED)).get(condition.local_notify_socket):
            condition.local_notify_socket.recv(flags=zmq.NOBLOCK, copy=False)

    return wait


@_patches(
    "vllm.model_executor.models.registry:_run_in_subprocess",
    place=PatchPlace.ZYGOTE,
    versions=">=0.19",
    reason="vLLM asks each model class what it supports in a fresh process, 12 s of imports, so "
    "as not to touch a GPU in this one; here there is none, and the imports are done",
)
def _called_here(_: Any) -> Any:
    def inspect(question: Callable[[], Any]) -> Any:
        return question()

    return inspect


@_patches(
    "vllm.platforms.cpu:CpuPlatform.register_triton_kernel_overrides",
    place=PatchPlace.ZYGOTE,
    versions=">=0.32",
    reason="every process of an engine looks through all that was ever imported for Triton's "
    "kernels, half a second; forked ones have what was found before",
)
@_patches(
    "vllm.utils.cpu_resource_utils:_get_cpu_list",
    place=PatchPlace.ZYGOTE,
    versions=">=0.32",
    reason="vLLM asks `lscpu` twice for each process of an engine; the machine stays the same",
)
def _asked_once(original: Any) -> Any:
    answer = original()
    return lambda *_: copy.copy(answer)


@_patches(
    "vllm.v1.executor.multiproc_executor:configure_logging",
    place=PatchPlace.ZYGOTE,
    versions=">=0.32",
    reason="every process of an engine configures vLLM's two thousand loggers; each clears the "
    "caches of all: 0.2 s; forked ones have what was configured before",
)
def _configured_now(_: Any) -> Any:
    from vllm.config.logging import LoggingConfig
    from vllm.logger import configure_logging_if_needed

    configure_logging_if_needed(LoggingConfig())
    return configure_logging_if_needed


@_patches(
    "nnsight.modeling.vllm:VLLM._WORKER_CLS",
    place=PatchPlace.ENGINE,
    versions=">=0.8",
    reason="nnsight's worker is one for CUDA, serves one stage and knows nothing of the harness; "
    "this is where nnsight has its name",
)
def _named(_: Any, *, worker: str) -> str:
    return worker


@_patches(
    "nnsight.intervention.interleaver:Mediator.__setstate__",
    place=PatchPlace.WORKER,
    versions=">=0.8",
    reason="nnsight registers the source of each block that reaches an engine for tracebacks, and "
    "never takes it back: an engine's processes grow by some 6 KiB with every prompt",
)
def _forgetting(original: Any) -> Any:
    def restore(block: Any, state: Any) -> None:
        original(block, state)
        # The name is registered with the block's id, which another block may get after this one.
        name = f"<edit-{id(block)}>"
        weakref.finalize(block, linecache.cache.pop, name, None).atexit = False

    return restore


@_patches(
    "vllm.v1.sample.sampler:batched_count_greater_than",
    place=PatchPlace.WORKER,
    versions=">=0.19",
    reason="vLLM compiles the count of the ranks of tokens, which are asked for with "
    "log-probabilities: some ten seconds in every process",
)
def _uncompiled(compiled: Any) -> Any:
    return getattr(compiled, "_torchdynamo_orig_callable", compiled)


@_patches(
    "nnsight.modeling.vllm.model_runners.GPUModelRunner:get_pp_group",
    place=PatchPlace.RELAY,
    versions=">=0.8",
    reason="nnsight answers with saved values where the pipeline group's rank is 0: the first "
    "stage, whose copies of the blocks have not seen the other stages' values when a request ends",
)
def _reporting_rank(_: Any, *, reports: bool) -> Any:
    group = SimpleNamespace(rank=0 if reports else 1)
    return lambda: group


@_patches(
    "nnsight.modeling.vllm.model_runners.GPUModelRunner:dumps_compact",
    place=PatchPlace.RELAY,
    versions=">=0.8",
    reason="nnsight pickles what a trace saved, and torch writes each tensor as a file of its "
    "own: as long as a layer takes, for every layer and step that was read",
)
def _at_once(_: Any, **__: Any) -> Any:
    from conformance.engines.vllm.relay.saved_values import dumps

    return dumps


@_patches(
    "nnsight.modeling.vllm.model_runners.GPUModelRunner:loads",
    place=PatchPlace.RELAY,
    versions=">=0.8",
    reason="what a block captured is unpickled on the GPU that it was on, which is that of one "
    "stage; on the others the block would meet tensors of two GPUs",
)
def _landing(original: Any, **__: Any) -> Any:
    from conformance.engines.vllm.relay.saved_values import BlockUnpickler

    return partial(original, unpickler=BlockUnpickler)


@_patches(
    "vllm.distributed.parallel_state:_PP",
    place=PatchPlace.WHOLE_TREE,
    versions=">=0.19",
    reason="vLLM builds the layers of its own stage; the tree names those of all",
)
class _OneStage:
    """Stands in for vLLM's pipeline group while the whole tree is built."""

    rank_in_group = 0
    world_size = 1
    is_first_rank = True
    is_last_rank = True

    def __init__(self, group: Any) -> None:
        self._group = group

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)


#: Target → the attribute before any patch.
_ORIGINALS: dict[str, Any] = {}


def apply(place: PatchPlace, **given: Any) -> None:
    """Apply all patches of a place, built with the arguments `given`; idempotent."""
    for patch, owner, name in _targets(place):
        original = _ORIGINALS.setdefault(patch.target, getattr(owner, name))
        setattr(owner, name, patch.replacement(original, **given))


@contextmanager
def applied(place: PatchPlace, **given: Any) -> Iterator[None]:
    """Apply all patches of a place inside the with block."""
    with ExitStack() as stack:
        for patch, owner, name in _targets(place):
            replacement = patch.replacement(getattr(owner, name), **given)
            stack.enter_context(mock.patch.object(owner, name, replacement))
        yield


def _targets(place: PatchPlace) -> Iterator[tuple[Patch, Any, str]]:
    """Yield each patch of a place, the object that has its target, and the attribute's name.

    Targets that the installed version lacks are skipped with a warning.
    """
    for patch in PATCHES:
        if patch.place is not place or not patch.meant:
            continue
        module, _, path = patch.target.partition(":")
        *above, name = path.split(".")
        try:
            owner = reduce(getattr, above, importlib.import_module(module))
            getattr(owner, name)
        except (AttributeError, ImportError) as error:
            logger.warning("%s is not exchanged: %s", patch.target, error)
        else:
            yield patch, owner, name
