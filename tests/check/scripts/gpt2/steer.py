"""GPT-2 has one tensor a layer on both sides."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        model.transformer.h[1].output[:] += 0.5
        after = model.transformer.h[2].output.clone().save()
        logits = model.lm_head.output[:, -1].save()
    return {"after": after, "logits": logits}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        model.transformer.h[1].output[:] += 0.5
        after = model.transformer.h[2].output.clone().save()
        logits = model.logits.clone().save()
    return {"after": after, "logits": logits}
