"""One self-contained HTML page per run: look at the pictures, the noise, the training and the audit, offline.

`planes` reads and encodes the pictures, `charts` draws the curves, `sections` writes the page's parts and `page` puts
them together; page.html, page.css and page.js are copied into every page.
"""

from .page import Report, write_report

__all__ = ["Report", "write_report"]
