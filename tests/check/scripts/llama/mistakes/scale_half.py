"""The stream is to be doubled, and one half of it is."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        model.model.layers[1].output[:] *= 2
        hidden = model.model.layers[2].output.save()
    return {"hidden": hidden}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        model.model.layers[1].output[0][:] *= 2  # mistake: first-half
        layer = model.model.layers[2]
        hidden = (layer.output[0] + layer.output[1]).save()
    return {"hidden": hidden}
