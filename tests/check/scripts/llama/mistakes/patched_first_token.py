"""The patch goes to the first token instead of the last."""

PROMPT = "The capital of France is"
DONOR = "A small boat drifted past the bridge"


def hf(model):
    with model.trace(DONOR):
        donor = model.model.layers[1].output[0, -1].clone().save()
    with model.trace(PROMPT):
        model.model.layers[1].output[0, -1] = donor
        logits = model.lm_head.output[:, -1].save()
    return {"logits": logits}


def vllm(model):
    with model.trace(DONOR, temperature=0.0, max_tokens=1):
        layer = model.model.layers[1]
        donor = (layer.output[0] + layer.output[1])[-1].save()
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        layer = model.model.layers[1]
        layer.output[0][0] = donor  # mistake: other-tokens
        layer.output[1][0] = 0
        logits = model.logits.clone().save()
    return {"logits": logits}
