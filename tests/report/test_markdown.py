"""Text of a run's own cannot break out of a Markdown table."""

from hypothesis import given
from hypothesis import strategies as st

from conformance.report.render.markdown import plain


@given(st.text())
def test_any_text_is_one_line_without_an_open_bar_or_tag(text):
    said = plain(text)
    assert len(said.splitlines()) <= 1
    assert "<" not in said and ">" not in said
    assert "|" not in said.replace("\\|", "")
