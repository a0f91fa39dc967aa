"""All layers are cached, and of each the residual before its MLP."""

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
            streams.append(layer.output[1].clone())  # mistake: residual
        streams.save()
    return {"streams": dict(enumerate(streams))}
