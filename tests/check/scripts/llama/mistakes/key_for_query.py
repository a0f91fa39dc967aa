"""Columns of the keys as the query."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        key = model.model.layers[1].self_attn.k_proj.output.save()
    return {"key": key}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        qkv = model.model.layers[1].self_attn.qkv_proj.output[0]
        key = qkv[:, 384:512].clone().save()  # mistake: self_attn.v_proj
    return {"key": key}
