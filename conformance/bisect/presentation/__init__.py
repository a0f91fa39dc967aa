"""Show a search as terminal lines, a document and a page."""
