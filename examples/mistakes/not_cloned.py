"""What is kept is a view of a buffer that the trace itself overwrites."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        before = model.model.layers[1].mlp.output.clone().save()
        model.model.layers[1].mlp.output[:] = 0
        logits = model.lm_head.output[:, -1].save()
    return {"before": before, "logits": logits}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        before = model.model.layers[1].mlp.output.save()  # mistake: alias
        model.model.layers[1].mlp.output[:] = 0
        logits = model.logits.clone().save()
    return {"before": before, "logits": logits}
