"""Attention probabilities."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        weights = model.model.layers[1].self_attn.output[1].save()
    return {"weights": weights}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        found = model.model.layers[1].self_attn.output[1]  # mistake: probabilities, no edit
        weights = found.clone().save()
    return {"weights": weights}
