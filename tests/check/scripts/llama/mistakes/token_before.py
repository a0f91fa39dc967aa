"""The token before the last one."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        last = model.model.layers[2].output[0, -1].save()
    return {"last": last}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        layer = model.model.layers[2]
        last = (layer.output[0] + layer.output[1])[-2].save()  # mistake: stream
    return {"last": last}
