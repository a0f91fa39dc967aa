"""Caching: the residual stream after every layer of a prompt, as users port it."""

PROMPT = "A small boat drifted slowly past the old stone bridge"


def hf(model):
    with model.trace(PROMPT):
        streams = []
        for layer in model.model.layers:
            streams.append(layer.output.clone())
        streams.save()
    return {"streams": dict(enumerate(streams))}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        streams = []
        for layer in model.model.layers:
            streams.append(layer.output[0] + layer.output[1])
        streams.save()
    return {"streams": dict(enumerate(streams))}
