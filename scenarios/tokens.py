"""Tokens: the ids that the model is given, from a text, from a list of ids, and from one id.

The same ids go in, none more and none less, and everything follows from them.
"""

from conformance import scenario


def given(make, case):
    """The prompts of this case: texts, or what `make` makes of them."""
    kind = case.options["as"]
    if kind == "text":
        return list(case.prompts)
    ids = [list(make(prompt)) for prompt in case.prompts]
    return ids if kind == "ids" else [ids[0][:1], ids[1][-1:]]


def block(lm):
    """What each prompt's block does."""
    ids = lm.ids
    streams = {index: layer.stream for index, layer in enumerate(lm.layers)}
    return {"ids": ids, "stream": streams, "logits": lm.logits, "tokens": lm.token}


@scenario(
    options={"as": ("text", "ids", "one")}, needs=lambda _: ("embedding",), depends_on="engine"
)
def tokens(lm, case):
    whole = case.options["as"] == "ids"  # both ways to them
    prompts = given(lm.tokenize if whole else lambda text: lm.tokenizer(text).input_ids, case)
    with lm.trace() as tracer:
        with tracer.invoke(prompts[0]):
            first = block(lm).save()
        with tracer.invoke(prompts[1]):
            second = block(lm).save()
    return [first, second]


@tokens.reference
def _(model, case):
    runs = [model.run(prompt) for prompt in given(model.tokenize, case)]
    return [
        {"ids": run.ids, "stream": run.stream, "logits": run.logits, "tokens": run.tokens}
        for run in runs
    ]
