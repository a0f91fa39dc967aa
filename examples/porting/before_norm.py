"""The stream before the final norm: the sum of the two tensors that the norm is given."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        value = model.model.norm.input.save()  # moves
    return {"value": value}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        value = sum(model.model.norm.inputs[0]).save()  # moves
    return {"value": value}
