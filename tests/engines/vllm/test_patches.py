"""Everything that is exchanged in other packages is in one list."""

from __future__ import annotations

import ast
import asyncio
import gc
import importlib
import linecache
import sys
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
import zmq
from nnsight.intervention.interleaver import Mediator
from packaging.specifiers import SpecifierSet
from vllm.distributed.device_communicators.shm_broadcast import SpinCondition
from vllm.model_executor.model_loader import base_loader
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import RequestOutputCollector

import conformance
from conformance.engines.vllm import patches
from conformance.engines.vllm.patches import PATCHES, Patch, PatchPlace

PACKAGE = Path(conformance.__file__).parent
PATCHING = PACKAGE / "engines" / "vllm" / "patches.py"
#: It breaks other packages on purpose, inside of workers that do nothing else.
SELFTEST = PACKAGE / "commands" / "selftest"
#: Name a run's files in shared memory, for which Python has no setting.
NAMING = {PACKAGE / "runner" / "processes" / "temporary.py"}
#: Switches that torch has for this.
SETTINGS = "torch.backends."


def _root(node):
    """The name at the beginning of `a.b[c].d`, or None."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        return "import_module"
    return node.id if isinstance(node, ast.Name) else None


def _foreign(tree):
    """Names that an import, at the top or inside a function, binds to what is not ours."""
    names = {"import_module"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {
                (alias.asname or alias.name).split(".")[0]
                for alias in node.names
                if not alias.name.startswith("conformance")
            }
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("conformance"):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign) and _root(node.value) == "import_module":
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def _targets(node):
    """What a statement sets or deletes, and the object whose attribute a call sets."""
    if isinstance(node, ast.Assign | ast.Delete):
        for target in node.targets:
            yield from target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        yield node.target
    elif isinstance(node, ast.Call) and node.args:
        called = ast.unparse(node.func)
        if called in {"setattr", "delattr"} or called.endswith(("mock.patch", "patch.object")):
            yield ast.Attribute(node.args[0], "called")


def exchanges(source):
    """Each line that sets, deletes or mocks an attribute of another package's module or class."""
    tree = ast.parse(source)
    foreign = _foreign(tree)
    return sorted(
        node.lineno
        for node in ast.walk(tree)
        for target in _targets(node)
        if isinstance(target, ast.Attribute)
        and (_root(target) in foreign or isinstance(target.value, ast.Constant))
        and not ast.unparse(target).startswith(SETTINGS)
    )


def test_nothing_of_another_package_is_exchanged_but_by_the_list():
    paths = {path for path in PACKAGE.rglob("*.py") if not path.is_relative_to(SELFTEST)}
    found = {
        str(path.relative_to(PACKAGE)): lines
        for path in sorted(paths - {PATCHING, *NAMING})
        if (lines := exchanges(path.read_text()))
    }
    assert len(paths) > 200
    assert found == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch\ntorch.accelerator.synchronize = print", 1),
        ("def f():\n    from vllm.v1.executor import multiproc_executor as m\n    m.get = len", 1),
        ("from nnsight.modeling.vllm import VLLM\nVLLM._WORKER_CLS: str = 'x'", 1),
        ("import vllm\nx, vllm.b = 1, 2", 1),
        ("import importlib\nmodule: object = importlib.import_module('vllm')\nmodule.x = 1", 1),
        ("from vllm import a\nsetattr(a, 'x', 1)", 1),
        ("from vllm import a\ndel a.b", 1),
        ("from unittest import mock\nfrom vllm import a\nmock.patch.object(a, 'x', 1)", 1),
        ("from unittest import mock\nmock.patch('vllm.a.b', 1)", 1),
        ("import importlib\nimportlib.import_module('vllm').x = 1", 1),
        ("import os\nos.environ['X'] = '1'", 0),
        ("from conformance import store\nstore.x = 1", 0),
        ("import torch\ntorch.backends.cudnn.allow_tf32 = False", 0),
        ("import torch\nclass A:\n    def f(self):\n        self.x = torch.ones(1)", 0),
    ],
)
def test_what_goes_past_the_list_is_found_and_nothing_else(source, found):
    assert len(exchanges(source)) == found


def test_what_is_exchanged_is_there_in_the_installed_versions():
    assert all(SpecifierSet(patch.versions) and patch.reason for patch in PATCHES)
    there = [each.target for place in PatchPlace for each, *_ in patches._targets(place)]
    assert sorted(there) == sorted({patch.target for patch in PATCHES})
    assert {patch.place for patch in PATCHES} == set(PatchPlace)


class Box:
    """Another package's class."""

    held = 1


@pytest.fixture
def listed(monkeypatch):
    """A list of patches of `Box`, in the place of the real one."""

    def put(*records):
        monkeypatch.setattr(Box, "held", 1)
        monkeypatch.setattr(patches, "PATCHES", records)
        monkeypatch.setattr(patches, "_ORIGINALS", {})

    return put


def plus(held, *, more=1):
    return held + more


def record(attribute="held", versions=">=0"):
    return Patch(f"{__name__}:Box.{attribute}", PatchPlace.CLIENT, versions, "", plus)


def test_applied_twice_is_applied_once_and_for_a_block_it_is_put_back(listed):
    listed(record())
    with patches.applied(PatchPlace.CLIENT, more=2):
        assert Box.held == 3
    patches.apply(PatchPlace.WORKER)
    assert Box.held == 1
    patches.apply(PatchPlace.CLIENT)
    patches.apply(PatchPlace.CLIENT)
    assert Box.held == 2
    patches.apply(PatchPlace.CLIENT, more=5)
    assert Box.held == 6


def test_what_an_installed_version_has_not_is_left_and_logged(listed, caplog):
    listed(record("gone"), record())
    patches.apply(PatchPlace.CLIENT)
    assert not hasattr(Box, "gone") and Box.held == 2
    assert "Box.gone is not exchanged" in caplog.text


@pytest.mark.parametrize(("version", "held"), [("1.9", 1), ("2.0rc1.dev7+g1", 2), ("dev", 2)])
def test_a_patch_is_for_some_versions(listed, monkeypatch, version, held):
    listed(record(versions=">=2.0.dev0"))
    monkeypatch.setattr(sys.modules[__name__], "__version__", version, raising=False)
    patches.apply(PatchPlace.CLIENT)
    assert Box.held == held


@pytest.mark.parametrize(
    ("devices", "target", "processed"),
    [
        (["meta", "meta"], "cpu", False),
        (["meta", "meta"], "meta", False),
        (["cpu", "cpu"], "meta", False),
        (["cpu", "cpu"], "cpu", True),
        # A stage holds another's layers on the meta device, where vLLM's Transformers backend
        # builds them.
        (["cpu", "meta"], "cpu", True),
    ],
)
def test_no_weights_are_processed_on_the_meta_device(monkeypatch, devices, target, processed):
    """Whatever the layer: a client's tree is read for its structure alone."""
    given = []
    monkeypatch.setattr(base_loader, "process_weights_after_loading", lambda *a: given.append(a))
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 2, device=device) for device in devices))
    with patches.applied(PatchPlace.CLIENT):
        base_loader.process_weights_after_loading(model, None, torch.device(target))
    assert bool(given) is processed


def test_the_source_of_a_block_is_there_for_as_long_as_the_block():
    def sources():
        return {name for name in linecache.cache if name.startswith("<edit-")}

    def arrived():
        block = Mediator.__new__(Mediator)
        block.__setstate__({"reduced": ("x = 1\n", {}, {}), "copy": False, "presaved": frozenset()})
        return block

    before = sources()
    with patches.applied(PatchPlace.WORKER):
        blocks = [arrived() for _ in range(3)]
        assert len(sources() - before) == 3
        del blocks
        gc.collect()
    assert sources() == before


@pytest.fixture
def condition() -> Iterator[tuple[Any, Any]]:
    """The two ends by which one of vLLM's processes tells another of a message."""
    with zmq.Context() as context:
        address = f"inproc://{uuid.uuid4()}"
        writer = SpinCondition(is_reader=False, context=context, notify_address=address)
        reader = SpinCondition(is_reader=True, context=context, notify_address=address)
        yield writer, reader
        ends = (writer.local_notify_socket, reader.local_notify_socket)
        for end in (*ends, reader.write_cancel_socket, reader.read_cancel_socket):
            end.close(linger=0)


def test_who_waits_is_told_of_a_message_and_looks_unasked_where_that_is_lost(
    condition: tuple[Any, Any],
) -> None:
    [patch] = [one for one in PATCHES if one.target.endswith("SpinCondition.wait")]
    begun: list[int | None] = []
    wait = patch.replacement(lambda condition, timeout_ms: begun.append(timeout_ms))
    writer, reader = condition
    reader.record_read()
    while not reader.local_notify_socket.poll(0):  # a subscription takes its time
        writer.notify()
    wait(reader, None)
    assert not reader.local_notify_socket.poll(0)
    wait(reader, None)  # with none under way it returns as well: the caller looks for itself
    assert begun == []
    reader.last_read -= reader.busy_loop_s + 1
    wait(reader, 5000)
    assert begun == [5000]


def test_a_store_listens_on_its_own_host_and_on_no_other():
    def listening():
        found = psutil.Process().net_connections(kind="inet")
        return {tuple(one.laddr) for one in found if one.status == psutil.CONN_LISTEN}

    rendezvous = importlib.import_module("torch.distributed.rendezvous")
    before = listening()
    with patches.applied(PatchPlace.CLIENT):
        store = rendezvous._create_c10d_store("127.0.0.1", 0, 0, 1, timedelta(seconds=20))
    assert [host for host, port in listening() - before] == ["127.0.0.1"]
    store.set("key", "value")
    assert store.get("key") == b"value"
    assert (store.host, store.port) in listening()


# --- a call of an engine whose process has ended ends as well ------------------------------


@pytest.fixture
def dying(monkeypatch):
    """An engine, and a call after which it has ended."""
    monkeypatch.setattr(patches, "LOOK", 0.01)
    dead = RuntimeError("EngineCore encountered an issue")
    engine = SimpleNamespace(errored=False, dead_error=dead)

    async def ends():
        engine.errored = True
        await asyncio.get_running_loop().create_future()

    return engine, ends


def run(answer):
    async def call():
        return await asyncio.wait_for(answer, timeout=20)

    return asyncio.run(call())


def test_nobody_waits_for_an_engine_that_has_ended(dying):
    engine, ends = dying

    async def answers(error=None):
        await asyncio.sleep(0.03)
        if error:
            raise error
        return [7]

    assert run(patches.unless_dead(engine, answers())) == [7]
    with pytest.raises(ValueError, match="no such method"):
        run(patches.unless_dead(engine, answers(ValueError("no such method"))))
    run(patches.tell_of_the_end(engine, lambda: None))  # of a request that is over
    with pytest.raises(RuntimeError, match="EngineCore"):
        run(patches.unless_dead(engine, ends()))


def test_the_engine_that_nnsight_asks_is_vllms_with_that_end(dying, monkeypatch):
    """nnsight awaits `collective_rpc` itself, for what a finished trace has saved."""
    engine, ends = dying
    monkeypatch.setattr(AsyncLLM, "collective_rpc", lambda *_, **__: ends())
    with patches.applied(PatchPlace.STREAMING), pytest.raises(RuntimeError, match="EngineCore"):
        run(AsyncLLM.collective_rpc(engine, "saved"))


def test_a_request_that_comes_as_the_engine_ends_is_told_of_it(dying, monkeypatch):
    engine, _ = dying

    async def accepted(*_, **__):
        return RequestOutputCollector(RequestOutputKind.DELTA, "one")

    async def call():
        request = await AsyncLLM.add_request(engine, "one")
        engine.errored = True
        await request.get()

    monkeypatch.setattr(AsyncLLM, "add_request", accepted)
    with patches.applied(PatchPlace.STREAMING), pytest.raises(RuntimeError, match="EngineCore"):
        run(call())
