"""A dump of another tool: its names, its places, and the file that transformers runs for it."""

import pytest
import torch
from safetensors.torch import save_file

from conformance.commands.check import dumps
from conformance.commands.check.values.compare import Compared
from conformance.errors import ConformanceError
from conformance.judge.cell.judgement import Judgement
from conformance.spec.records import Judged, Verdict


def written(tmp_path, **values):
    path = tmp_path / "acts.safetensors"
    save_file(values, path)
    return path


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("blocks.3.hook_resid_post", "stream.3"),
        ("model.layers.12.output", "stream.12"),
        ("model.layers.12.mlp", "mlp.12"),
        ("hidden_states.0", "embedding"),
        ("hidden_states.4", "state.4"),
        ("logits", "logits"),
        ("old_log_probs", "logprobs"),
        ("rollout_logprobs", "logprobs"),
        ("whatever", ""),
    ],
)
def test_names_of_other_tools_are_known(name, place):
    assert dumps.place_of(name) == place


def test_places_are_read_in_the_order_of_a_forward(tmp_path):
    names = ("logits", "stream.1", "mlp.1", "mine", "embedding")
    path = written(
        tmp_path,
        prompt_ids=torch.tensor([5, 6]),
        **{name: torch.zeros(2, 4) for name in names},
    )
    file = dumps.as_file(dumps.read(path, ["mine=attention.1"]), tmp_path / "made")
    reads = [line.split(" = ")[0].strip() for line in file.text.splitlines() if ".save()" in line]
    assert reads == ["embedding", "attention_1", "mlp_1", "stream_1", "logits"]
    assert "[5, 6]" in file.text and list(file.functions) == ["trace"]


def test_what_is_missing_is_asked_for(tmp_path):
    with pytest.raises(ConformanceError, match="has no `prompt_ids`"):
        dumps.read(written(tmp_path, logits=torch.zeros(3)), [])
    path = written(tmp_path, prompt_ids=torch.tensor([1]), acts=torch.zeros(1, 3))
    with pytest.raises(ConformanceError, match="no place is known for 'acts'"):
        dumps.read(path, [])
    with pytest.raises(ConformanceError, match="is not a place"):
        dumps.read(path, ["acts=somewhere"])
    with pytest.raises(ConformanceError, match="no safetensors"):
        dumps.read(tmp_path / "absent", [])


def test_a_map_of_a_name_that_is_not_there_is_refused(tmp_path):
    path = written(tmp_path, prompt_ids=torch.tensor([1]), logits=torch.zeros(3))
    with pytest.raises(ConformanceError, match="has no 'acts'"):
        dumps.read(path, ["acts=stream.1"])
    path = written(tmp_path, prompt_ids=torch.tensor([[1], [2]]), logits=torch.zeros(3))
    with pytest.raises(ConformanceError, match="2 prompts"):
        dumps.read(path, [])


def test_transformers_last_hidden_state_is_the_norms(tmp_path):
    names = {"hidden_states.1": torch.zeros(1, 3), "hidden_states.2": torch.zeros(1, 3)}
    found = dumps.read(written(tmp_path, prompt_ids=torch.tensor([1]), **names), [])
    assert "norm = lm.norm.output.save()" in dumps.as_file(found, tmp_path / "made").text
    assert dumps.resolve_states(found, 2).places == {
        "hidden_states.1": "stream.0",
        "hidden_states.2": "norm",
    }
    assert dumps.resolve_states(found, 3).places == {
        "hidden_states.1": "stream.0",
        "hidden_states.2": "stream.1",
    }


def test_a_wrong_value_is_described_by_its_shape_or_by_what_it_holds(tmp_path):
    rows = torch.randn(2, 4)
    names = {"stream.1": torch.randn(2, 3, 4), "mlp.1": rows, "norm": torch.randn(2, 4)}
    found = dumps.read(written(tmp_path, prompt_ids=torch.tensor([5, 6]), **names), [])
    seen = {f"float32:truth|{dumps.site_name(name)}": torch.randn(2, 4) for name in names}
    seen = {key.replace("|", "|p0/s0/"): value for key, value in seen.items()}
    seen["layers|p0/s0/stream.1"] = rows
    off = [Judged(f"p0/s0/{dumps.site_name(name)}", Verdict.WRONG) for name in names]
    judgement = Judgement(Verdict.WRONG, "", tuple(off))
    words = [one.words for one in dumps._found(found, seen, Compared(judgement), "layers")]
    assert words == [
        "`stream.1` has shape [2, 3, 4], and stream.1 is [2, 4]",
        "`mlp.1` holds the residual stream after layer 1, and mlp.1 was expected",
        "`norm` is nothing that transformers computes, and norm was expected",
    ]


IDS = torch.tensor([5, 6, 7])


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (2, 2), (3, 2)])
def test_log_probabilities_are_of_the_last_ids(tmp_path, count, rows):
    path = written(tmp_path, prompt_ids=IDS, old_log_probs=torch.arange(float(count)))
    found = dumps.read(path, [])
    assert found.values["old_log_probs"].tolist() == [[count - rows + i] for i in range(rows)]
    file = dumps.as_file(found, tmp_path / "made")
    assert f"lm.log_probabilities([5, 6, 7], steps=1, top=1).prompt[-{rows}:]" in file.text
    assert "lm.trace" not in file.text and not file.first_write()


def test_log_probabilities_of_other_ids_and_two_values_of_one_place_are_refused(tmp_path):
    path = written(tmp_path, prompt_ids=IDS, logprobs=torch.zeros(4))
    with pytest.raises(ConformanceError, match="4 log-probabilities for 3 ids"):
        dumps.read(path, [])
    path = written(tmp_path, prompt_ids=IDS, logits=torch.zeros(3, 9), lm_head=torch.zeros(3, 9))
    with pytest.raises(ConformanceError, match="are both logits"):
        dumps.read(path, [])


def test_log_probabilities_recorded_by_mistake_are_identified():
    torch.manual_seed(0)
    logits, ids = torch.randn(40, 9) * 3, torch.randint(9, (40,))

    def of_ids(first, temperature=1.0):
        rows = torch.log_softmax(logits[: len(ids) - first] / temperature, dim=-1)
        return rows.gather(-1, ids[first:, None])

    meant = of_ids(1)
    seen = {
        "value|0/0||logits": logits,
        "float32:truth|p0/s0/logprobs": meant[-30:],
        "bf16:eager|p0/s0/logprobs": meant[-30:] + 0.01,
    }
    recorded = {
        "of the next token": torch.cat([meant[-29:], torch.zeros(1, 1)]),
        "of the token before": meant[-31:-1],
        "of each token after itself": of_ids(0)[-30:],
        "after a temperature of 0.7": of_ids(1, 0.7)[-30:],
        "": 2 * meant[-30:],
    }
    dump = dumps.Dump(None, tuple(ids.tolist()), {}, {})
    for words, value in recorded.items():
        assert dumps._other_logprobs(dump, value, seen) == words
        assert dumps._other_logprobs(dump, value[-9:], seen) == "", "too few to tell"
