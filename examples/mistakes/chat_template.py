"""The template is rendered on one side only."""

WORDS = "What is the capital of France?"


def hf(model):
    text = f"<|im_start|>user\n{WORDS}<|im_end|>\n<|im_start|>assistant\n"
    with model.trace(text):
        logits = model.lm_head.output[:, -1].save()
    return {"logits": logits}


def vllm(model):
    with model.trace(WORDS, temperature=0.0, max_tokens=1):  # mistake: prompt
        logits = model.logits.clone().save()
    return {"logits": logits}
