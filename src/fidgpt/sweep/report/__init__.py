"""The report of a sweep: which point won, by how much, what each axis did, and how to run it."""

from fidgpt.sweep.report.document import InlinePage, write_page
from fidgpt.sweep.report.statistics import Report, read_report

__all__ = ["InlinePage", "Report", "read_report", "write_page"]
