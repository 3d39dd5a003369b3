"""A sweep told to somebody: which point won, by how much, what each axis did, and how to run it."""

from fidgpt.sweep.report.document import Written, write_report
from fidgpt.sweep.report.report import Report, csv_text, markdown_text, read_report

__all__ = [
    "Report",
    "Written",
    "csv_text",
    "markdown_text",
    "read_report",
    "write_report",
]
