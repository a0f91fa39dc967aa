"""What a block uses of the user's file reaches an engine's processes, which cannot import it."""

import sys

import cloudpickle

from conformance.engines.user_trace import user_file


def test_a_function_of_the_file_needs_no_import_of_it(tmp_path):
    path = tmp_path / "mine_alone.py"
    path.write_text("SIZE = 3\n\n\ndef scaled(value):\n    return SIZE * value\n")
    module = user_file._module(path)
    sent = cloudpickle.dumps(module.scaled)
    sys.path.remove(str(tmp_path))
    del sys.modules[module.__name__]
    assert cloudpickle.loads(sent)(2) == 6
