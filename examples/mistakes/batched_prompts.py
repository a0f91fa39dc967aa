"""Activations have no batch axis there: an index takes a token."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        mlp = model.model.layers[1].mlp.output[0].save()
    return {"mlp": mlp}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        mlp = model.model.layers[1].mlp.output[0].clone().save()  # mistake: mlp
    return {"mlp": mlp}
