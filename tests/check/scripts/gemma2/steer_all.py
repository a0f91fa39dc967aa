"""Steering and reading streams."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        model.model.layers[1].output[:] += 0.5
        hidden = model.model.layers[2].output[:, -1].clone().save()
        logits = model.output.logits[:, -1].save()
    return {"hidden": hidden, "logits": logits}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        model.model.layers[1].output[0][:] += 0.5
        layer = model.model.layers[2]
        hidden = (layer.output[0] + layer.output[1])[-1].save()
        logits = model.logits.clone().save()
    return {"hidden": hidden, "logits": logits}
