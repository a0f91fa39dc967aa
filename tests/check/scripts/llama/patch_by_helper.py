"""Patching with helpers, at several layers."""

PROMPT = "The capital of France is"
DONOR = "The capital of Italy is"
LAYERS = (0, 2)


def stream(layer):
    return layer.output[0] + layer.output[1]


def hf(model):
    with model.trace(DONOR):
        donor = {i: model.model.layers[i].output[0, -1].clone() for i in LAYERS}.save()
    with model.trace(PROMPT):
        for i in LAYERS:
            model.model.layers[i].output[0, -1] = donor[i]
        logits = model.lm_head.output[:, -1].save()
    return {"logits": logits}


def vllm(model):
    with model.trace(DONOR, temperature=0.0, max_tokens=1):
        donor = {i: stream(model.model.layers[i])[-1] for i in LAYERS}.save()
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        for i in LAYERS:
            model.model.layers[i].output[0][-1] = donor[i]
            model.model.layers[i].output[1][-1] = 0
        logits = model.logits.clone().save()
    return {"logits": logits}
