"""Patching: a donor's stream after one layer is saved in one trace, and its last token's row
put in the place of a recipient's in another.
"""

from conformance import scenario


@scenario(layers={"at": ("early", "late")}, twin=True)
def patching(lm, case):
    recipient, donor = case.prompts
    at = case.layers["at"]
    with lm.trace(donor):
        donated = lm.layers[at].stream.save()
    with lm.trace(recipient):
        if case.active:
            stream = lm.layers[at].stream
            stream[-1] = donated[-1]
            lm.layers[at].stream = stream
        streams = {index: lm.layers[index].stream for index in range(at, len(lm.layers))}
        streams = streams.save()
        logits = lm.logits.save()
    return [{"stream": streams, "logits": logits}]


@patching.reference
def _(model, case):
    recipient, donor = case.prompts
    at = case.layers["at"]
    donated = model.run(donor).stream[0][at]

    def patch(stream, earlier):
        patched = stream.clone()
        patched[-1] = donated[-1]
        return patched

    run = model.run(recipient, edits={at: patch} if case.active else {})
    return [{"stream": run.after(at), "logits": run.logits}]
