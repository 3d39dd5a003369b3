"""What tests of hostile files share: loading that must fail, and a watch over imports."""

import importlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from fidgpt.graph import ConfigError, load

from . import parts

ALLOWED = (parts.__name__,)


def refused(content: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(content if isinstance(content, str) else json.dumps(content), allowed=ALLOWED)
    message = str(caught.value)
    assert len(message) < 600
    return message


@pytest.fixture(autouse=True)
def nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Only packages that files may speak of are asked for, and no module is new in the end."""
    asked: list[str] = []
    really = importlib.import_module

    def recording(name: str, package: str | None = None) -> Any:
        asked.append(name)
        return really(name, package)

    for room in ("configs", "data", "fiddlers", "interop", "model", "optim", "train", "tags"):
        really(f"fidgpt.{room}")
    really("fidgpt.graph.yaml")  # which is loaded for the first YAML
    before = set(sys.modules)
    monkeypatch.setattr(importlib, "import_module", recording)
    yield
    assert set(sys.modules) <= before
    assert set(asked) <= before
