"""Half of the stream."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        hidden = model.model.layers[2].output[0].clone().save()
    return {"hidden": hidden}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        hidden = model.model.layers[2].output[0].clone().save()  # mistake: mlp
    return {"hidden": hidden}
