"""The three renderers of `report.sections`: terminal, Markdown and page."""

from conformance.report.render import markdown, page, terminal

__all__ = ["markdown", "page", "terminal"]
