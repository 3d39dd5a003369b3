"""Processes that talk: how they find each other, what they send, and who of them is missing."""

from fidgpt.processes.processes import *
