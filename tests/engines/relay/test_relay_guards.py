"""Each safety of the relay is missed by some test when it is taken out."""

import pytest
from relay_compare import differences, left_behind
from relay_faults import FAULTS
from relay_lab import Lab, ProgramError, Spec

from tests.patience import PATIENCE

pytestmark = [pytest.mark.engine, pytest.mark.slow]


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
        if left := left_behind(faulty):
            return f"{program}: left {left}"
    return ""


@pytest.mark.parametrize("fault", FAULTS)
def test_noticed(lab: Lab, fault, capsys):
    _, _, programs, *engine, settings = FAULTS[fault]
    # The sound engine has as many stages, so that the fault is the only difference.
    sound = lab.engine(Spec(*engine, settings))
    spec = Spec(*engine, (*settings, ("fault", fault)))
    try:
        what = noticed(sound, lab.engine(spec), programs)
    except RuntimeError as error:  # the engine did not even start
        what = str(error).splitlines()[-1]
    finally:
        lab.drop(spec, broken=True)
    with capsys.disabled():
        print(f"\n{fault}: {what or 'NOT NOTICED'}"[:160])
    assert what
