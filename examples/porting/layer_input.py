"""The stream before a layer: the sum of the two tensors that its first norm is given."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        value = model.model.layers[2].input.save()  # moves
    return {"value": value}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        value = sum(model.model.layers[2].input_layernorm.inputs[0]).save()  # moves
    return {"value": value}
