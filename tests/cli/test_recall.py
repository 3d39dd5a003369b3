"""Warnings about an old file: each change once, however many components have it."""

import pytest

from fidgpt import configs
from fidgpt.compose import sources as recall
from fidgpt.graph import dump


def test_changes_that_many_parts_have_alike_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ["Scale is called Gain now"]
    changes += [f"model.blocks[{i}].norm: gain is called factor now" for i in range(5)]
    changes += ["model.norm: use is gone, and was {'a': 1}, as is built now"]
    changes += ["model.norm: gain is called factor now"]
    cfg = configs.debug()
    monkeypatch.setattr(recall, "load_with_changes", lambda *_, **__: (cfg, changes))
    assert recall.load_and_warn(dump(cfg), source="old.json", allowed=()) is cfg
    assert capsys.readouterr().err.splitlines() == [
        "old.json: Scale is called Gain now",
        "old.json: gain is called factor now, in model.blocks[0].norm, model.blocks[1].norm, "
        "model.blocks[2].norm and 3 more",
        "old.json: model.norm: use is gone, and was {'a': 1}, as is built now",
    ]
