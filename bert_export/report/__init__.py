"""A bundle's report: what it is, where it came from and what was measured, as one HTML page or as JSON.

`measure_report` collects and measures; `bert_export.report.page.render_page` draws, for which it needs the extra
`report`. Neither needs torch.
"""

from bert_export.report.data import Report, measure_report

__all__ = ["Report", "measure_report"]
