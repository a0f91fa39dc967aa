# ruff: noqa: F841, RET504, RUF059, SIM118 - blocks name what they save; a cache is no dict
"""What the relay's tests run: functions of the traced model, the same at any stage count.

Each returns plain values and tensors, to be compared bit by bit between engines. Layers are
vLLM's, which return (change, residual).
"""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

import nnsight
import torch

A = [5, 6, 7, 8, 9]
B = [40, 41, 42]
C = [100, 3, 77, 250, 251, 252, 9]
ONE = {"temperature": 0.0, "max_tokens": 1}


def state(model: Any) -> list[dict[str, Any]]:
    """The relay's counters on every rank."""
    return model.vllm_entrypoint.llm_engine.collective_rpc("conformance_relay_state")


def tracked(model: Any) -> list[int]:
    """How many requests nnsight tracks, on every rank."""
    return model.vllm_entrypoint.llm_engine.collective_rpc("nnsight_request_count")


def identity(model: Any) -> list[dict[str, Any]]:
    return model.vllm_entrypoint.llm_engine.collective_rpc("conformance_identity")


def clean(model: Any, steps: int = 4) -> Any:
    with model.trace(A, temperature=0.0, max_tokens=steps) as tracer:
        logits = [].save()
        for _ in tracer.iter[:steps]:
            logits.append(model.logits.clone())
    return logits


def untraced(model: Any, steps: int = 4) -> Any:
    outputs = model.generate([{"prompt_token_ids": A}], temperature=0.0, max_tokens=steps)
    return outputs[0].outputs[0].token_ids


def read_all(model: Any) -> Any:
    layers = model.model.layers
    with model.trace(A, **ONE):
        embedded = model.model.embed_tokens.output.clone().save()
        inputs, outputs = [].save(), [].save()
        for layer in layers:
            inputs.append(layer.input.clone())
            change, residual = layer.output
            outputs.append((change.clone(), residual.clone()))
        normed = model.model.norm.output[0].clone().save()
        logits = model.logits.clone().save()
    return embedded, inputs, outputs, normed, logits


def containers(model: Any) -> Any:
    layers = model.model.layers
    with model.trace(A, **ONE):
        box = {}
        box["first"] = layers[0].output[0].clone()
        box["both"] = (box["first"] * 2, layers[3].output[1].clone())
        box["more"] = [layers[3].output[0].mean(), {"deep": box["first"].sum()}]
        box = nnsight.save(box)
    return box


def named_tuple(model: Any) -> Any:
    layers = model.model.layers
    with model.trace(A, **ONE):
        first = layers[0].output[0].clone()
        last = layers[3].output[0].clone()
        pair = nnsight.save(Pair(first, last))
    return tuple(pair)


class Pair(NamedTuple):
    first: Any
    last: Any


def sub_modules(model: Any) -> Any:
    layers = model.model.layers
    with model.trace(A, **ONE):
        root_in = model.model.input.clone().save()
        got = [].save()
        for layer in layers:
            got.append(layer.input_layernorm.output[0].clone())
            got.append(layer.self_attn.qkv_proj.output[0].clone())
            got.append(layer.self_attn.output.clone())
            got.append(layer.mlp.gate_up_proj.output[0].clone())
            got.append(layer.mlp.output.clone())
        root_out = model.model.output.clone().save()
    return root_in, got, root_out


def rotary(model: Any, occurrences: int = 1) -> Any:
    """One module shared by all layers, of which the client knows the first path only."""
    module = model.model.layers[3].self_attn.rotary_emb
    with model.trace(A, **ONE) as tracer:
        got = [].save()
        for _ in tracer.iter[:occurrences]:
            got.append(module.output[0].clone())
    return got


def tuple_of_remote(model: Any) -> Any:
    with model.trace(A, **ONE):
        change, residual = tuple(model.model.layers[0].output)
        late = tuple(model.model.layers[3].output)
        total = (change + residual + late[0]).save()
    return total


def cross_consume(model: Any) -> Any:
    layers = model.model.layers
    with model.trace(A, **ONE):
        early = layers[0].output[0].clone()
        early_residual = layers[0].output[1].clone()
        late = layers[3].output[0].clone()
        mixed = (early * 3 + late - early_residual).save()
        logits = model.logits.clone().save()
    return mixed, logits


def cross_write(model: Any) -> Any:
    layers = model.model.layers
    with model.trace(A, **ONE):
        early = layers[0].output[0].clone()
        change, residual = layers[3].output
        layers[3].output = (change + early, residual)
        after = layers[3].output[0].clone().save()
        logits = model.logits.clone().save()
    return after, logits


def write_both_sides(model: Any) -> Any:
    layers = model.model.layers
    with model.trace(A, **ONE):
        change, residual = layers[0].output
        layers[0].output = (change * 0.5, residual)
        kept = layers[0].output[0].clone().save()
        second = layers[2].output[0].clone()
        layers[3].output = (second - kept, layers[3].output[1])
        logits = model.logits.clone().save()
    return kept, logits


def in_place(model: Any) -> Any:
    layers = model.model.layers
    with model.trace(A, **ONE):
        layers[0].output[0][-1] = 0
        layers[3].output[0][:] *= 2
        late = layers[3].output[0].clone().save()
        logits = model.logits.clone().save()
    return late, logits


def inputs_written(model: Any) -> Any:
    layers = model.model.layers
    with model.trace(A, **ONE):
        layers[0].mlp.input = layers[0].mlp.input * 1.5
        layers[3].mlp.input = layers[3].mlp.input * 0.5
        late = layers[3].mlp.output.clone().save()
        logits = model.logits.clone().save()
    return late, logits


def ablation(model: Any, layer: int) -> Any:
    layers = model.model.layers
    with model.trace(A, **ONE):
        change, residual = layers[layer].output
        layers[layer].output = (torch.zeros_like(change), torch.zeros_like(residual))
        logits = model.logits.clone().save()
    return logits


def steering(model: Any, layer: int) -> Any:
    layers = model.model.layers
    vector = torch.linspace(-2, 2, 64, dtype=torch.bfloat16)
    with model.trace(A, temperature=0.0, max_tokens=3) as tracer:
        logits = [].save()
        for _ in tracer.iter[:3]:
            change, residual = layers[layer].output
            layers[layer].output = (change + vector, residual)
            logits.append(model.logits.clone())
    return logits


def skip(model: Any, layer: int) -> Any:
    layers = model.model.layers
    with model.trace(A, **ONE):
        hidden = layers[layer - 1].output
        layers[layer].skip((hidden[0].clone(), hidden[1].clone()))
        logits = model.logits.clone().save()
    return logits


def forward_per_step(model: Any, steps: int = 5) -> Any:
    layers = model.model.layers
    with model.trace(A, temperature=0.0, max_tokens=steps) as tracer:
        late, logits = [].save(), [].save()
        for _ in tracer.iter[:steps]:
            early = layers[0].output[0].clone()
            change, residual = layers[3].output
            layers[3].output = (change + early, residual)
            late.append(layers[3].output[0].clone())
            logits.append(model.logits.clone())
    return late, logits


def backward_between_steps(model: Any, steps: int = 5) -> Any:
    """Each step writes an early layer with what a late layer and the logits gave before."""
    layers = model.model.layers
    with model.trace(A, temperature=0.0, max_tokens=steps) as tracer:
        carried = None
        early, logits = [].save(), [].save()
        for _ in tracer.iter[:steps]:
            change, residual = layers[0].output
            if carried is not None:
                layers[0].output = (change + carried[-1:], residual)
            early.append(layers[0].output[0].clone())
            late = layers[3].output[0].clone()
            scores = model.logits
            carried = late * scores.max().to(late.dtype)
            logits.append(scores.clone())
    return early, logits


def samples_forced(model: Any, steps: int = 5) -> Any:
    layers = model.model.layers
    with model.trace(A, temperature=0.0, max_tokens=steps) as tracer:
        early, ids = [].save(), [].save()
        for step in tracer.iter[:steps]:
            early.append(layers[0].output[0].clone())
            model.samples = torch.full_like(model.samples, 20 + step)
            ids.append(model.samples.clone())
        result = tracer.result
        out = nnsight.save(list(result.outputs[0].token_ids))
    return early, ids, out


def samples_read_then_written(model: Any, steps: int = 4) -> Any:
    """The sampled id of one step decides the edit of an early layer in the next."""
    layers = model.model.layers
    with model.trace(A, temperature=0.0, max_tokens=steps) as tracer:
        last = 0
        got = [].save()
        for _ in tracer.iter[:steps]:
            change, residual = layers[1].output
            layers[1].output = (change + (last % 7) * 0.25, residual)
            got.append(model.logits.clone())
            last = int(model.samples[0, 0])
    return got


def relaxed_steps(model: Any) -> Any:
    """Accesses after the first of a step follow the model instead of a step number."""
    layers = model.model.layers
    with model.trace(A, temperature=0.0, max_tokens=6) as tracer:
        got = [].save()
        for _ in tracer.iter[2:5]:
            got.append(layers[0].output[0].clone())
            got.append(layers[3].output[0].clone())
            got.append(layers[3].mlp.output.clone())
    return got


def some_steps(model: Any) -> Any:
    layers = model.model.layers
    with model.trace(A, temperature=0.0, max_tokens=6) as tracer:
        got = [].save()
        for step in tracer.iter[[0, 2, 5]]:
            got.append((step, layers[3].output[0].clone(), layers[3].output[1].clone()))
    return got


def open_loop(model: Any, steps: int = 4) -> Any:
    layers = model.model.layers
    with model.trace(A, temperature=0.0, max_tokens=steps) as tracer:
        got = [].save()
        for _ in tracer.iter[:]:
            got.append(layers[0].output[0].clone())
            got.append(layers[3].output[0].clone())
    return got


def invokes(model: Any) -> Any:
    """Prompts of different lengths that end at different steps."""
    layers = model.model.layers
    with model.trace(temperature=0.0) as tracer:
        one, two, three = [].save(), [].save(), [].save()
        with tracer.invoke(A, max_tokens=2):
            for _ in tracer.iter[:2]:
                one.append(layers[0].output[0].clone())
                one.append(model.logits.clone())
        with tracer.invoke(B, max_tokens=5):
            for _ in tracer.iter[:5]:
                early = layers[0].output[0].clone()
                change, residual = layers[3].output
                layers[3].output = (change - early, residual)
                two.append(layers[3].output[0].clone())
                two.append(model.logits.clone())
        with tracer.invoke(C, max_tokens=3):
            for _ in tracer.iter[:3]:
                change, residual = layers[1].output
                layers[1].output = (change * 0, residual)
                three.append(layers[3].output[0].clone())
                three.append(model.logits.clone())
    return one, two, three


def wave(model: Any, count: int = 6, steps: int = 4) -> Any:
    """As many prompts as asked for, each writing early what it read late a step before."""
    layers = model.model.layers
    prompts = [[10 + i + j for j in range(4 + 3 * i)] for i in range(count)]
    with model.trace(temperature=0.0) as tracer:
        got = [None] * count
        got = nnsight.save(got)
        for i, prompt in enumerate(prompts):
            with tracer.invoke(prompt, max_tokens=steps + i % 3):
                carried, mine = None, []
                for _ in tracer.iter[: steps + i % 3]:
                    change, residual = layers[0].output
                    if carried is not None:
                        layers[0].output = (change + carried, residual)
                    late = layers[3].output[0].clone()
                    carried = late[-1:] * 0.5
                    mine.append((late, model.logits.clone()))
                got[i] = mine
    return got


def cached(model: Any, steps: int = 3, everything: bool = False) -> Any:
    layers = model.model.layers
    modules = None if everything else [layers[0], layers[3]]
    with model.trace(A, temperature=0.0, max_tokens=steps) as tracer:
        cache = tracer.cache(modules=modules).save()
        change, residual = layers[2].output
        layers[2].output = (change * 2, residual)
    # A cache keeps views on the CPU, and the rotary embedding overwrites its projection in
    # place: there one stage returns what was written later, and the relay what was read.
    paths = [p for p in cache.keys() if "." in p and not p.endswith("qkv_proj")]
    return {path: cache[path].output for path in paths}


def stopped(model: Any) -> Any:
    layers = model.model.layers
    with model.trace(A, temperature=0.0, max_tokens=8) as tracer:
        got = [].save()
        for step in tracer.iter[:8]:
            got.append(layers[0].output[0].clone())
            got.append(layers[3].output[0].clone())
            if step == 2:
                tracer.stop()
    return got


def result(model: Any) -> Any:
    with model.trace(A, temperature=0.0, max_tokens=3) as tracer:
        hidden = model.model.layers[0].output[0].clone().save()
        ids = nnsight.save(list(tracer.result.outputs[0].token_ids))
    return hidden, ids


def several_samples(model: Any) -> Any:
    with model.trace(A, temperature=1.0, seed=3, max_tokens=3, n=2) as tracer:
        got = [].save()
        for _ in tracer.iter[:3]:
            early = model.model.layers[0].output[0].clone()
            got.append((early, model.model.layers[3].output[0] + early, model.logits.clone()))
    return got


def registered(model: Any) -> Any:
    layers = model.model.layers
    with model.edit() as (tracer, edit):
        early = layers[0].output[0].clone().save()
        change, residual = layers[3].output
        layers[3].output = (change + early, residual)
        late = layers[3].output[0].clone().save()
    try:
        outputs = model.generate([{"prompt_token_ids": A}], temperature=0.0, max_tokens=3)
        plain = (dict(outputs[0].saves), list(outputs[0].outputs[0].token_ids))
        with model.trace(B, **ONE):
            seen = layers[3].output[0].clone().save()
            logits = model.logits.clone().save()
    finally:
        edit.clear()
    return plain, seen, logits


def registered_each_step(model: Any) -> Any:
    layers = model.model.layers
    with model.edit() as (tracer, edit):
        rows = nnsight.save([])
        for _ in tracer.iter[:4]:
            rows.append(layers[0].output[0].clone())
            rows.append(layers[3].output[0].clone())
    try:
        outputs = model.generate([{"prompt_token_ids": A}], temperature=0.0, max_tokens=4)
    finally:
        edit.clear()
    return outputs[0].saves["rows"]


def two_traces(model: Any) -> Any:
    return clean(model), read_all(model), backward_between_steps(model)


def preempted(model: Any) -> Any:
    """More tokens than the cache holds, so that requests are set aside and computed anew."""
    layers = model.model.layers
    scheduler = model.vllm_entrypoint.llm_engine.engine_core.engine_core.scheduler
    original, aside = scheduler._preempt_request, []

    def preempt(request: Any, *args: Any, **kwargs: Any) -> Any:
        aside.append(request.request_id)
        return original(request, *args, **kwargs)

    scheduler._preempt_request = preempt
    prompts = [[30 + i + j for j in range(24)] for i in range(4)]
    try:
        with model.trace(temperature=0.0, ignore_eos=True) as tracer:
            got = [None] * 4
            got = nnsight.save(got)
            for i, prompt in enumerate(prompts):
                with tracer.invoke(prompt, max_tokens=30):
                    mine, carried = [], None
                    for _ in tracer.iter[:30]:
                        early = layers[0].output[0][-1].clone()
                        if carried is not None:
                            change, residual = layers[1].output
                            layers[1].output = (change + carried, residual)
                        late = layers[3].output[0][-1].clone()
                        carried = late * 0.125
                        mine.append((early, late, model.logits.clone()))
                    got[i] = mine
    finally:
        del scheduler._preempt_request
    assert aside, "nothing was preempted"
    return got


def norm_applied(model: Any) -> Any:
    """A weight of the last stage's and one of the first's, used by a block."""
    with model.trace(A, **ONE):
        early = model.model.layers[0].output[0].clone()
        scaled = (early * model.model.norm.weight).save()
        late = model.model.layers[3].output[0].clone()
        rescaled = (late * model.model.layers[0].input_layernorm.weight).save()
        called = model.model.norm(early).save()
    return scaled, rescaled, called


def remote_weight_written(model: Any) -> Any:
    """The last stage's weight decides an edit on the first stage."""
    layers = model.model.layers
    with model.trace(A, **ONE):
        change, residual = layers[0].output
        layers[0].output = (change * model.model.norm.weight, residual)
        logits = model.logits.clone().save()
    return logits


def source(model: Any, layer: int) -> Any:
    mlp = model.model.layers[layer].mlp
    with model.trace(A, **ONE):
        inner = mlp.source.maybe_fused_act_quant_0.output.clone().save()
        outer = mlp.output.clone().save()
        logits = model.logits.clone().save()
    return inner, outer, logits


def source_written(model: Any, layer: int) -> Any:
    mlp = model.model.layers[layer].mlp
    with model.trace(A, **ONE):
        mlp.source.maybe_fused_act_quant_0.output = mlp.source.maybe_fused_act_quant_0.output * 2
        logits = model.logits.clone().save()
    return logits


def noisy(model: Any, layer: int) -> Any:
    """Random numbers in a write, and afterwards what the writing layer says it wrote."""
    import random

    layers = model.model.layers
    with model.trace(A, **ONE):
        change, residual = layers[layer].output
        noise = torch.randn(change.shape).to(change.dtype) * random.random()
        layers[layer].output = (change + noise, residual)
        wrote = noise.save()
        logits = model.logits.clone().save()
    return wrote, logits


def gpt_read_write(model: Any) -> Any:
    layers = model.transformer.h
    with model.trace(A, temperature=0.0, max_tokens=3) as tracer:
        got, carried = [].save(), None
        for _ in tracer.iter[:3]:
            hidden = layers[0].output
            if carried is not None:
                layers[0].output = hidden + carried
            early = layers[0].output.clone()
            late = layers[-1].output
            layers[-1].output = late + early
            carried = layers[-1].output[-1:].clone()
            got.append((early, carried, model.logits.clone()))
    return got


# -- what must raise -----------------------------------------------------------------------


def out_of_order(model: Any) -> Any:
    layers = model.model.layers
    with model.trace(A, **ONE):
        late = layers[3].output[0].clone().save()
        early = layers[0].output[0].clone().save()
    return late, early


def out_of_order_here(model: Any) -> Any:
    layers = model.model.layers
    with model.trace(A, **ONE):
        second = layers[1].output[0].clone().save()
        first = layers[0].output[0].clone().save()
    return second, first


def raises(model: Any, where: str) -> Any:
    layers = model.model.layers
    with model.trace(A, **ONE):
        if where == "before":
            raise ValueError("before any access")
        early = layers[0].output[0].clone().save()
        if where == "between":
            raise ValueError("between accesses")
        late = layers[3].output[0].clone().save()
        if where == "after":
            raise ValueError("after the last access")
    return early, late


def raises_in_one(model: Any) -> Any:
    layers = model.model.layers
    with model.trace(temperature=0.0, max_tokens=3) as tracer:
        with tracer.invoke(A):
            first = layers[3].output[0].clone().save()
        with tracer.invoke(B):
            layers[0].output[0].clone()
            raise KeyError("one of two")
    return first


def wrong_shape(model: Any) -> Any:
    layers = model.model.layers
    with model.trace(A, **ONE):
        early = layers[0].output[0].clone()
        late = layers[3].output[0][:2].clone()
        wrong = (early + late).save()
    return wrong


def unknown_module(model: Any) -> Any:
    with model.trace(A, **ONE):
        wrong = model.model.layers[3].nonsense.output.save()
    return wrong


def writes_process_id(model: Any, layer: int, steps: int = 1) -> Any:
    layers = model.model.layers
    with model.trace(A, temperature=0.0, max_tokens=steps) as tracer:
        for _ in tracer.iter[:steps]:
            change, residual = layers[layer].output
            layers[layer].output = (change + (os.getpid() % 64) / 8, residual)
        logits = model.logits.clone().save()
    return logits


def reads_on_one_stage_only(model: Any) -> Any:
    """Control flow that depends on the process: a layer asked for on one stage only."""
    layers = model.model.layers
    with model.trace(A, **ONE):
        from vllm.distributed.parallel_state import get_pp_group

        if get_pp_group().is_last_rank:
            got = layers[0].output[0].clone().save()
        logits = model.logits.clone().save()
    return logits


def forward_raises(model: Any, layer: int) -> Any:
    """A skip that one of two prompts asks for makes the forward itself raise there."""
    layers = model.model.layers
    with model.trace(**ONE) as tracer:
        with tracer.invoke(A):
            early = layers[layer - 1].output
            layers[layer].skip((early[0].clone(), early[1].clone()))
            logits = model.logits.clone().save()
        with tracer.invoke(B):
            other = layers[3].output[0].clone().save()
    return logits, other


def aborted(model: Any) -> Any:
    """A request is abandoned in the middle, then others run."""
    engine = model.vllm_entrypoint.llm_engine
    original = engine.step
    calls = []

    def step() -> Any:
        outputs = original()
        calls.append(1)
        if len(calls) == 4:
            engine.abort_request(list(engine.output_processor.request_states), internal=True)
        return outputs

    engine.step = step
    try:
        with model.trace(A, temperature=0.0, max_tokens=12) as tracer:
            got = [].save()
            for _ in tracer.iter[:12]:
                got.append(model.model.layers[3].output[0].clone())
    finally:
        del engine.step
    return None


def random_program(model: Any, invokes: list[tuple[list[int], int, list[Any]]]) -> Any:
    """Run generated operations: per invoke a prompt, its step count, and one list a step.

    An operation is (kind, layer, stream, value): ``read`` saves, ``add`` adds the last value
    read times ``value``, ``set`` scales in place, ``put`` replaces by ``value``.
    """
    layers = model.model.layers
    count = len(invokes)
    with model.trace(temperature=0.0) as tracer:
        got = [None] * count
        got = nnsight.save(got)
        for i, (prompt, steps, program) in enumerate(invokes):
            with tracer.invoke(prompt, max_tokens=steps, ignore_eos=True):
                mine, held = [], None
                for step in tracer.iter[:steps]:
                    for kind, layer, stream, value in program[step]:
                        if kind == "logits":
                            mine.append(model.logits.clone())
                        elif kind == "force":
                            model.samples = torch.full_like(model.samples, int(value))
                        elif kind == "read":
                            mine.append(layers[layer].output[stream].clone())
                            held = mine[-1]
                        elif kind == "put":
                            pair = list(layers[layer].output)
                            pair[stream] = torch.full_like(pair[stream], value)
                            layers[layer].output = tuple(pair)
                        elif kind == "add":
                            pair = list(layers[layer].output)
                            more = 1.0 if held is None else held[-1:]
                            pair[stream] = pair[stream] + more * value
                            layers[layer].output = tuple(pair)
                        else:
                            layers[layer].output[stream][:] *= value
                got[i] = mine
    return got


def saved_before_error(model: Any) -> Any:
    layers = model.model.layers
    early = late = None
    try:
        with model.trace(A, **ONE):
            early = layers[0].output[0].clone().save()
            late = layers[3].output[0].clone().save()
            raise ValueError("after both")
    except RuntimeError:
        pass
    return early, late


def sampled(model: Any, draw: bool = False) -> Any:
    """Sampling at a temperature, with or without a block that draws random numbers."""
    torch.manual_seed(0)
    with model.trace(A, temperature=1.0, seed=11, max_tokens=6) as tracer:
        ids = [].save()
        for _ in tracer.iter[:6]:
            model.model.layers[0].output[0].clone()
            if draw:
                torch.randn(100)
            ids.append(model.samples.clone())
    return ids


# -- what is timed: each returns its own seconds ---------------------------------------------

PROMPT = [7, 11, 13, 17, 19, 23, 29, 31]


def bench_untraced(model: Any) -> float:
    started = time.perf_counter()
    model.generate([{"prompt_token_ids": PROMPT}], temperature=0.0, max_tokens=16, ignore_eos=True)
    return time.perf_counter() - started


def bench_nothing(model: Any) -> float:
    started = time.perf_counter()
    with model.trace(PROMPT, temperature=0.0, max_tokens=16, ignore_eos=True) as tracer:
        ids = nnsight.save(tracer.result.outputs[0].token_ids)
    assert len(ids) == 16
    return time.perf_counter() - started


def bench_read_all(model: Any) -> float:
    started = time.perf_counter()
    layers = model.model.layers
    with model.trace(PROMPT, temperature=0.0, max_tokens=16, ignore_eos=True) as tracer:
        got = [].save()
        for _ in tracer.iter[:16]:
            for layer in layers:
                got.append(layer.output[0].clone())
    assert len(got) == 16 * len(layers)
    return time.perf_counter() - started


def bench_cross_write(model: Any) -> float:
    started = time.perf_counter()
    layers = model.model.layers
    with model.trace(PROMPT, temperature=0.0, max_tokens=16, ignore_eos=True) as tracer:
        logits = [].save()
        for _ in tracer.iter[:16]:
            early = layers[0].output[0].clone()
            change, residual = layers[-1].output
            layers[-1].output = (change + early, residual)
            logits.append(model.logits.clone())
    assert len(logits) == 16
    return time.perf_counter() - started


def bench_writes_two_prompts(model: Any) -> float:
    started = time.perf_counter()
    layers = model.model.layers
    with model.trace(temperature=0.0, max_tokens=8, ignore_eos=True) as tracer:
        got = [None] * 2
        got = nnsight.save(got)
        for i in range(2):
            with tracer.invoke(PROMPT[: 8 - i]):
                carried, mine = None, []
                for _ in tracer.iter[:8]:
                    change, residual = layers[0].output
                    if carried is not None:
                        layers[0].output = (change + carried, residual)
                    carried = layers[-1].output[0][-1:] * 0.5
                    mine.append(model.logits.clone())
                got[i] = mine
    assert [len(mine) for mine in got] == [8, 8]
    return time.perf_counter() - started


def abort_noticed(model: Any) -> list[int]:
    """How many requests are tracked some time after one was abandoned."""
    aborted(model)
    clean(model)
    time.sleep(5.5)
    clean(model)
    return tracked(model)


def bytes_of_untraced(model: Any) -> int:
    """How much a request without a block makes the stages send."""
    before = sum(rank["bytes"] for rank in state(model))
    untraced(model)
    return sum(rank["bytes"] for rank in state(model)) - before


def rows_carried(model: Any) -> Any:
    """Two prompts whose own sampled ids and logits decide their next edits of an early layer."""
    layers = model.model.layers
    with model.trace(temperature=0.0, max_tokens=4, ignore_eos=True) as tracer:
        got = [None] * 2
        got = nnsight.save(got)
        for i, prompt in enumerate((A, B)):
            with tracer.invoke(prompt):
                carried, mine = 0.0, []
                for _ in tracer.iter[:4]:
                    change, residual = layers[0].output
                    layers[0].output = (change + carried, residual)
                    top = model.logits.max()
                    carried = top.to(change.dtype) * (int(model.samples[0, 0]) % 5)
                    mine.append((top.clone(), carried.clone()))
                got[i] = mine
    return got


def noise_after_sampling(model: Any) -> bool:
    """Whether random writes are taken once the last stage, and no other, has sampled."""
    with model.trace(A, temperature=1.0, max_tokens=3):
        model.logits.clone()
    wrote, logits = noisy(model, 0)
    return bool(wrote.float().std() > 0 and logits.isfinite().all())
