"""The last token: there is no batch axis, so the first index takes tokens."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        value = model.model.layers[2].mlp.output[:, -1].save()  # moves
    return {"value": value}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        value = model.model.layers[2].mlp.output[-1].clone().save()  # moves
    return {"value": value}
