"""The residual stream after a layer: a layer returns two tensors, whose sum it is."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        value = model.model.layers[2].output.save()  # moves
    return {"value": value}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        layer = model.model.layers[2]
        value = (layer.output[0] + layer.output[1]).save()  # moves
    return {"value": value}
