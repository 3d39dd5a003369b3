"""A sweep told to somebody: which point won, by how much, what each axis did, and how to run it."""

from fidgpt.sweep.report.report import Report, read_report
from fidgpt.sweep.report.tables import csv_text, markdown_text
from fidgpt.sweep.report.writing import Written, write_report

__all__ = [
    "Report",
    "Written",
    "csv_text",
    "markdown_text",
    "read_report",
    "write_report",
]
