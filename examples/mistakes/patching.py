"""A donor's stream is put in the place of the MLP output; the residual stays what it was."""

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
        model.model.layers[1].output[0][-1] = donor  # mistake: first-half
        logits = model.logits.clone().save()
    return {"logits": logits}
