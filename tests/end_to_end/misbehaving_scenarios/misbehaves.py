"""A correct read, after something that no block should do."""

import os
import signal
import sys
import threading
import time

import torch

from conformance import scenario

from ._parts import observed, read


def misbehave(lm, how):  # noqa: C901, PLR0912 - one statement or two for each
    match how:
        case "allocates":
            held = []
            while len(held) < 4096:
                held.append(torch.empty(1 << 30, dtype=torch.uint8))
        case "closes":
            os.closerange(0, 4096)
        case "ends":
            os._exit(7)
        case "exits":
            sys.exit(0)
        case "floods":
            for _ in range(1000):
                sys.stdout.write("x" * 999_999 + "\n")
        case "forks":
            if os.fork() == 0:
                time.sleep(600)
                os._exit(0)
        case "hangs":
            while True:
                time.sleep(0.1)
        case "hooks":
            mlp = lm.layers[0].envoy.mlp._module
            mlp.register_forward_pre_hook(lambda _, given: (given[0] * 2, *given[1:]))
        case "interrupts":
            raise KeyboardInterrupt
        case "moves":
            os.chdir("/")
            os.environ.clear()
        case "patches":
            torch.nn.functional.silu = torch.relu
            torch.nn.functional.softmax = lambda value, *rest, **more: value * 0
        case "scales":  # a norm, as vLLM computes products from packed copies of other weights
            lm.layers[0].envoy.input_layernorm.weight.data.mul_(2)
        case "seeds":
            torch.manual_seed(0)
            torch.set_default_dtype(torch.float64)
        case "stops":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "threads":
            for _ in range(20):
                threading.Thread(target=threading.Event().wait, daemon=True).start()


#: In the order of a column. What ends `_after` is a read alone.
HOW = (
    *("allocates", "closes", "closes_after", "ends", "exits", "exits_after", "floods", "forks"),
    *("hangs", "hooks", "hooks_after", "interrupts", "moves", "moves_after", "patches"),
    *("patches_after", "scales", "scales_after", "seeds", "seeds_after", "stops", "threads"),
    "threads_after",
)


@scenario(options={"how": HOW})
def misbehaves(lm, case):
    with lm.trace(case.prompts[0]):
        misbehave(lm, case.options["how"])
        kept = observed(lm).save()
    return [kept]


misbehaves.reference(read)
