"""Scores of tasks: CORE, and questions that are asked in conversations."""
