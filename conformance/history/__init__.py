"""Show stored runs over time: the results of each model's columns, and their versions.

pasts = stored(reports, last=12)
document(pasts)
"""

from conformance.history.document import document
from conformance.history.stored import Past, stored

__all__ = ["Past", "document", "stored"]
