"""Stored runs over time: what each model's columns came to, with which versions.

pasts = stored(reports, last=12)
document(pasts)
"""

from conformance.history.document import document
from conformance.history.stored import Past, stored

__all__ = ["Past", "document", "stored"]
