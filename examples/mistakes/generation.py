"""vLLM is not told to be greedy."""

PROMPT = "The capital of France is"
STEPS = 6


def hf(model):
    with model.generate(PROMPT, max_new_tokens=STEPS) as tracer:
        logits = [].save()
        for _ in tracer.iter[:STEPS]:
            logits.append(model.lm_head.output[:, -1].clone())
    return {"logits": logits}


def vllm(model):
    with model.trace(PROMPT, max_tokens=STEPS) as tracer:  # mistake: defaults
        logits = [].save()
        for _ in tracer.iter[:STEPS]:
            logits.append(model.logits.clone())
    return {"logits": logits}
