"""A query out of the merged projection."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        query = model.model.layers[1].self_attn.q_proj.output.clone().save()
    return {"query": query}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        query = model.model.layers[1].self_attn.qkv_proj.output[0][:, :256].clone().save()
    return {"query": query}
