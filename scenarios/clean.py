"""Clean: the last token's logits and the first greedy token, with nothing changed.

One prompt by itself, then two prompts of different length in one trace.
"""

from conformance import scenario
from conformance.spec.programs import Form, Program


@scenario(options={"batch": ("alone", "pair")})
def clean(lm, case):
    if case.options["batch"] == "alone":
        with lm.trace(case.prompts[0]):
            logits = lm.logits.save()
            token = lm.token.save()
        return [{"logits": logits, "tokens": token}]

    with lm.trace() as tracer:
        with tracer.invoke(case.prompts[0]):
            first_logits = lm.logits.save()
            first_token = lm.token.save()
        with tracer.invoke(case.prompts[1]):
            second_logits = lm.logits.save()
            second_token = lm.token.save()
    return [
        {"logits": first_logits, "tokens": first_token},
        {"logits": second_logits, "tokens": second_token},
    ]


@clean.reference
def _(model, case):
    prompts = case.prompts[:1] if case.options["batch"] == "alone" else case.prompts
    runs = [model.run(prompt) for prompt in prompts]
    return [{"logits": run.logits, "tokens": run.tokens} for run in runs]


@clean.program
def _(_, case):
    prompts = case.prompts[:1] if case.options["batch"] == "alone" else case.prompts
    return Form(Program(prompts), ends=("logits", "tokens"))
