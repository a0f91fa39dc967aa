"""One engine at real size, in a process of its own: runs the programs and prints milliseconds.

    python bench/relay_real.py '{"kind": "relay", "pipeline": 2, "layers": 32, "width": 4096, ...}'

Kinds: "stock" is vLLM alone; "plain" nnsight's own worker, whose stages know nothing of each other,
so it runs no block but on one stage; "relay" is the stage relay. The weights are random.
"""

from __future__ import annotations

import cProfile
import io
import json
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests" / "engines" / "relay")]

STEPS = 16
PROMPT = "the quick brown fox jumps"
LONG = " ".join(["the quick brown fox jumps over the lazy dog"] * 39)


def checkpoint(layers: int, width: int, folder: str) -> str:
    """A Llama's configuration and a tokenizer, without weights."""
    from relay_lab import tokenizer
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=width * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=width // 128,
        num_key_value_heads=max(1, width // 512),
        head_dim=128,
        vocab_size=32000,
        max_position_embeddings=4096,
        bos_token_id=1,
        eos_token_id=2,
        architectures=["LlamaForCausalLM"],
        torch_dtype="bfloat16",
    )
    config.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def opened(asked: dict[str, Any], folder: str) -> Any:
    """The engine: nnsight's VLLM, or vLLM's LLM for the kind "stock"."""
    import os

    from conformance.engines import set_environment

    set_environment()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    import torch

    path = checkpoint(asked["layers"], asked["width"], folder)
    settings: dict[str, Any] = {
        "dtype": "bfloat16",
        "load_format": "dummy",
        "kv_cache_memory_bytes": 1 << 30 if torch.cuda.is_available() else 1 << 26,
        "gpu_memory_utilization": 0.05,
        "max_model_len": 512,
        "max_num_seqs": 8,
        "async_scheduling": False,
        "enforce_eager": True,
        "seed": 0,
        "pipeline_parallel_size": asked["pipeline"],
        "tensor_parallel_size": asked.get("tensor", 1),
    }
    if asked["kind"] == "stock":
        from vllm import LLM

        return LLM(path, **settings)
    from nnsight.modeling.vllm import VLLM

    from conformance.engines.vllm import client, patches
    from conformance.engines.vllm.patches import PatchPlace

    client.prepare()
    worker = client.worker_class(relay=asked["kind"] == "relay" and asked["pipeline"] > 1)
    patches.apply(PatchPlace.CLIENT)
    patches.apply(PatchPlace.ENGINE, worker=worker)
    del settings["enforce_eager"]
    return VLLM(path, dispatch=True, **settings)


# -- programs: each a trace of STEPS tokens ---------------------------------------------


def no_block(model: Any) -> None:
    from vllm import SamplingParams

    from conformance.engines.vllm.requests import trace_scope

    engine = getattr(model, "vllm_entrypoint", model)
    asked = SamplingParams(temperature=0.0, max_tokens=STEPS, ignore_eos=True)
    with trace_scope():
        engine.generate([PROMPT], asked, use_tqdm=False)


def touches_nothing(model: Any) -> None:
    with model.trace(PROMPT, temperature=0.0, max_tokens=STEPS, ignore_eos=True) as tracer:
        ids = tracer.result.outputs[0].token_ids.save()  # noqa: F841


def reads_one_layer(model: Any) -> None:
    layers, at = model.model.layers, len(model.model.layers) // 4
    with model.trace(PROMPT, temperature=0.0, max_tokens=STEPS, ignore_eos=True) as tracer:
        got = [].save()  # type: ignore[attr-defined]  # nnsight gives every object one
        for _ in tracer.iter[:STEPS]:
            got.append(layers[at].output[0].clone())
    assert len(got) == STEPS


def steers_one_layer(model: Any) -> None:
    layers, at = model.model.layers, len(model.model.layers) // 4
    with model.trace(PROMPT, temperature=0.0, max_tokens=STEPS, ignore_eos=True) as tracer:
        for _ in tracer.iter[:STEPS]:
            change, residual = layers[at].output
            layers[at].output = (change + 0.5, residual)
        ids = tracer.result.outputs[0].token_ids.save()  # noqa: F841


def writes_across_stages(model: Any) -> None:
    layers = model.model.layers
    with model.trace(PROMPT, temperature=0.0, max_tokens=STEPS, ignore_eos=True) as tracer:
        logits = [].save()  # type: ignore[attr-defined]  # nnsight gives every object one
        for _ in tracer.iter[:STEPS]:
            early = layers[0].output[0].clone()
            change, residual = layers[-1].output
            layers[-1].output = (change + early, residual)
            logits.append(model.logits.clone())
    assert len(logits) == STEPS


def writes_two_prompts(model: Any) -> None:
    layers, ids = model.model.layers, model.tokenizer(PROMPT).input_ids
    with model.trace(temperature=0.0, max_tokens=8, ignore_eos=True) as tracer:
        got = [None, None].save()  # type: ignore[attr-defined]  # nnsight gives every object one
        for i in range(2):
            with tracer.invoke(ids[i:]):
                carried, mine = None, []
                for _ in tracer.iter[:8]:
                    change, residual = layers[0].output
                    if carried is not None:
                        layers[0].output = (change + carried, residual)
                    carried = layers[-1].output[0][-1:] * 0.5
                    mine.append(model.logits.clone())
                got[i] = mine
    assert list(map(len, got)) == [8, 8]


def reads_all_layers(model: Any) -> None:
    layers = model.model.layers
    with model.trace(PROMPT, temperature=0.0, max_tokens=STEPS, ignore_eos=True) as tracer:
        got = [].save()  # type: ignore[attr-defined]  # nnsight gives every object one
        for _ in tracer.iter[:STEPS]:
            for layer in layers:
                got.append(layer.output[0].clone())
    assert len(got) == STEPS * len(layers)


def reads_all_layers_of_a_long_prompt(model: Any) -> None:
    layers = model.model.layers
    with model.trace(LONG, temperature=0.0, max_tokens=STEPS, ignore_eos=True) as tracer:
        got = [].save()  # type: ignore[attr-defined]  # nnsight gives every object one
        for layer in layers:
            got.append(layer.output[0].clone())
        ids = tracer.result.outputs[0].token_ids.save()  # noqa: F841
    assert len(got) == len(layers)


PROGRAMS: tuple[Callable[[Any], None], ...] = (
    no_block,
    touches_nothing,
    reads_one_layer,
    steers_one_layer,
    writes_across_stages,
    reads_all_layers,
    reads_all_layers_of_a_long_prompt,
)


# -- what a worker spends its time on ----------------------------------------------------


def begin_profile(worker: Any) -> None:
    worker.bench_profile = cProfile.Profile()
    worker.bench_profile.enable()


def end_profile(worker: Any) -> str:
    worker.bench_profile.disable()
    text = io.StringIO()
    stats = pstats.Stats(worker.bench_profile, stream=text)
    stats.sort_stats("tottime").print_stats(28)
    stats.sort_stats("cumtime").print_stats("conformance|nnsight|send|recv|reduce|dumps")
    return text.getvalue()


def timed(
    programs: Sequence[Callable[[Any], None]], model: Any, rounds: int
) -> dict[str, list[float]]:
    """Milliseconds of each round by program, after two that do not count. They take turns: what
    else the host does hits all of them alike.
    """
    times: dict[str, list[float]] = {program.__name__: [] for program in programs}
    for number in range(rounds + 2):
        for program in programs:
            started = time.perf_counter()
            program(model)
            if number >= 2:
                times[program.__name__].append((time.perf_counter() - started) * 1e3)
    return times


def main(asked: dict[str, Any]) -> None:
    """Print one JSON line a program, and one when the engine is up."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        model = opened(asked, folder)
        say({"loaded": time.perf_counter() - begun})
        blocks = asked["kind"] == "relay" or (asked["kind"] == "plain" and asked["pipeline"] == 1)
        programs = PROGRAMS if blocks else PROGRAMS[:1]
        for name, times in timed(programs, model, asked["rounds"]).items():
            say({"program": name, "ms": times, "median": statistics.median(times)})
        for name in asked.get("profile", []):
            engine = getattr(model, "vllm_entrypoint", model).llm_engine
            engine.collective_rpc(begin_profile)
            next(each for each in PROGRAMS if each.__name__ == name)(model)
            for rank, text in enumerate(engine.collective_rpc(end_profile)):
                say({"profile": name, "rank": rank, "text": text})
        if asked["kind"] != "stock":
            from conformance.engines.vllm import client

            client.close(model)


def say(what: dict[str, Any]) -> None:
    sys.stdout.write(f"@{json.dumps(what)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
