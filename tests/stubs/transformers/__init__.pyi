"""Keeps the type checker out of transformers, whose files take it longer than all of fidgpt's."""

from typing import Any

def __getattr__(name: str) -> Any: ...
