"""Transformers gives the attention a tuple, vLLM a tensor."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        attention = model.model.layers[1].self_attn.output[0].save()
    return {"attention": attention}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        attention = model.model.layers[1].self_attn.output[0].clone().save()  # mistake: attention
    return {"attention": attention}
