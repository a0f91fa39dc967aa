"""All tokens but the last are ablated after a layer, in one half of its stream only."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        model.model.layers[1].output[:, :-1] = 0
        logits = model.lm_head.output[:, -1].save()
    return {"logits": logits}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        model.model.layers[1].output[0][:-1] = 0  # mistake: first-half
        logits = model.logits.clone().save()
    return {"logits": logits}
