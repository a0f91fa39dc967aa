"""A donor's stream is written into a copy."""

DONOR, RECIPIENT = "The capital of Italy is", "The capital of France is"


def hf(model):
    with model.trace(DONOR):
        donor = model.model.layers[1].output[0, -1].clone().save()
    with model.trace(RECIPIENT):
        model.model.layers[1].output[0, -1] = donor
        logits = model.lm_head.output[:, -1].save()
    return {"logits": logits}


def vllm(model):
    with model.trace(DONOR, temperature=0.0, max_tokens=1):
        layer = model.model.layers[1]
        donor = (layer.output[0] + layer.output[1])[-1].save()
    with model.trace(RECIPIENT, temperature=0.0, max_tokens=1):
        layer = model.model.layers[1]
        stream = layer.output[0] + layer.output[1]
        stream[-1] = donor  # mistake: dropped
        logits = model.logits.clone().save()
    return {"logits": logits}
