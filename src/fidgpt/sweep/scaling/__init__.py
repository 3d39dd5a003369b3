"""Scaling laws of a sweep: how loss depends on size and tokens, and what to train for a budget."""

from fidgpt.sweep.scaling.law import *
