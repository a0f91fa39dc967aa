"""Layers in a dict, each half of the stream."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        hidden = {i: model.model.layers[i].output[0].clone() for i in (1, 3)}.save()
    return {"hidden": hidden}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        hidden = {i: model.model.layers[i].output[0].clone() for i in (1, 3)}.save()  # mistake: mlp
    return {"hidden": hidden}
