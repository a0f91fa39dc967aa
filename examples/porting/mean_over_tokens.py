"""A mean over the tokens: an axis less, so `dim=1` becomes `dim=0`."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        value = model.model.layers[2].mlp.output.mean(dim=1).save()  # moves
    return {"value": value}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        value = model.model.layers[2].mlp.output.mean(dim=0).save()  # moves
    return {"value": value}
