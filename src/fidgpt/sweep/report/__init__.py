"""The report of a sweep: which point won, by how much, what each axis did, and how to run it."""

from fidgpt.sweep.report.document import Written, csv_text, markdown_text, write_report
from fidgpt.sweep.report.statistics import Report, read_report

__all__ = ["Report", "Written", "csv_text", "markdown_text", "read_report", "write_report"]
