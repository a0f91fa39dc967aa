"""A tensor takes the place of the pair that a layer returns."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        model.model.layers[1].output = model.model.layers[1].output * 0.5
        logits = model.lm_head.output[:, -1].save()
    return {"logits": logits}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        layer = model.model.layers[1]
        layer.output = (layer.output[0] + layer.output[1]) * 0.5  # mistake: one-for-two
        logits = model.logits.clone().save()
    return {"logits": logits}
