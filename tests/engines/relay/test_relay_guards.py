"""Each safety of the relay is missed by some test when it is taken out."""

import pytest
from relay_compare import GROWING, differences
from relay_faults import FAULTS
from relay_lab import Lab, ProgramError, Spec

from tests.patience import PATIENCE

pytestmark = [pytest.mark.engine, pytest.mark.slow]

FLIGHT = (("max_model_len", 64), ("max_num_batched_tokens", 64))
FEW_BLOCKS = (("block_size", 32), ("num_gpu_blocks_override", 6))

#: The fault, and the programs of which one must notice it: by default on two stages.
NOTICED_BY = {
    "counts_of_served_visits_only": [("relaxed_steps",), ("samples_forced",), ("wave",)],
    "visits_counted_for_absent_workers": [("preempted",)],
    "no_cascade": [("backward_between_steps",), ("read_all",)],
    "no_backlog": [("backward_between_steps",)],
    "backlog_bound_by_age_only": [("read_all",)],
    "no_digests": [("writes_process_id", 0)],
    "caches_not_recorded": [("cached",)],
    "live_values_sent": [("in_place",), ("cross_write",), ("sub_modules",)],
    "first_stage_reports": [("backward_between_steps",), ("read_all",), ("stopped",)],
    "spanning_modules_served_everywhere": [("sub_modules",)],
    "shared_random_states": [("noise_after_sampling",)],
    "weights_not_fetched": [("norm_applied",), ("remote_weight_written",)],
    "shared_modules_by_local_name": [("rotary", 1)],
    "no_poison": [("forward_raises", 1)],
    "groups_of_the_present_step": [("wave", 8, 6)],
    "rows_left_as_tokens": [("rows_carried",)],
    "aborted_requests_kept": [("abort_noticed",)],
    "exchange_for_every_request": [("bytes_of_untraced",)],
    "pieces_sent_under_tensor_parallelism": [("sub_modules",)],
}
SETTINGS = {
    "visits_counted_for_absent_workers": FEW_BLOCKS,
    "groups_of_the_present_step": FLIGHT,
    # Its sound engine does not survive either, and is nobody else's.
    "no_poison": (("max_model_len", 96),),
}
SPLIT = {"no_cascade": ("llama-6", 3, 1), "pieces_sent_under_tensor_parallelism": ("llama-4", 2, 2)}


def outcome(engine, program):
    """What a program gives, its error's first line, or that it hung."""
    try:
        return engine.run(*program, timeout=PATIENCE)
    except ProgramError as error:
        return f"{error.kind}: {error.text.splitlines()[0]}"
    except TimeoutError:
        return "hung"


def noticed(sound, faulty, programs) -> str:
    for program in programs:
        expected, got = outcome(sound, program), outcome(faulty, program)
        if isinstance(got, str) or isinstance(expected, str):
            if got != expected:
                return f"{program}: {got}"
            continue
        if found := differences(expected, got):
            return f"{program}: {found[0]}"
        left = [
            {k: v for k, v in rank.items() if v and k not in GROWING}
            for rank in faulty.run("state")
        ]
        if any(left):
            return f"{program}: left {left}"
    return ""


def test_every_fault_is_listed():
    assert NOTICED_BY.keys() == FAULTS.keys()


@pytest.mark.parametrize("fault", NOTICED_BY)
def test_noticed(lab: Lab, fault, capsys):
    model, pipeline, tensor = SPLIT.get(fault, ("llama-4", 2, 1))
    settings = SETTINGS.get(fault, ())
    # The sound engine has as many stages, so that the fault is the only difference.
    sound = lab.engine(Spec(model, pipeline, tensor, settings))
    spec = Spec(model, pipeline, tensor, (*settings, ("fault", fault)))
    try:
        what = noticed(sound, lab.engine(spec), NOTICED_BY[fault])
    except RuntimeError as error:  # the engine did not even start
        what = str(error).splitlines()[-1]
    finally:
        lab.drop(spec, broken=True)
    with capsys.disabled():
        print(f"\n{fault}: {what or 'NOT NOTICED'}"[:160])
    assert what
