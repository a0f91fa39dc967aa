"""A chat template: the text that goes in is rendered once, and its tokens are compared first."""

TURNS = [("system", "You answer in one word."), ("user", "What is the capital of France?")]


def rendered(turns):
    text = "".join(f"<|im_start|>{role}\n{words}<|im_end|>\n" for role, words in turns)
    return f"{text}<|im_start|>assistant\n"


def hf(model):
    with model.trace(rendered(TURNS)):
        hidden = model.model.layers[2].output[:, -1].clone().save()
        logits = model.lm_head.output[:, -1].save()
    return {"hidden": hidden, "logits": logits}


def vllm(model):
    with model.trace(rendered(TURNS), temperature=0.0, max_tokens=1):
        layer = model.model.layers[2]
        hidden = (layer.output[0] + layer.output[1])[-1].save()
        logits = model.logits.clone().save()
    return {"hidden": hidden, "logits": logits}
