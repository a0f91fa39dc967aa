"""The head after the one that is meant is ablated."""

PROMPT = "The capital of France is"
WIDTH = 64


def hf(model):
    with model.trace(PROMPT):
        model.model.layers[1].self_attn.o_proj.input[:, :, WIDTH : 2 * WIDTH] = 0
        logits = model.lm_head.output[:, -1].save()
    return {"logits": logits}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        o_proj = model.model.layers[1].self_attn.o_proj
        o_proj.input[:, 2 * WIDTH : 3 * WIDTH] = 0  # mistake: write
        logits = model.logits.clone().save()
    return {"logits": logits}
