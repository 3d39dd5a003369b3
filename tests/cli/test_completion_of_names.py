"""Completion of names that projects offer, paths by class, and what --diff compares with."""

from pathlib import Path
from typing import Any

import pytest

from fidgpt.cli.completion import candidates
from fidgpt.cli.shells import read_line

Index = dict[str, Any]
CLASS = [f"del::WarmupCosine.{name} " for name in ("num_steps", "warmup_steps", "min_ratio")]
COMPLETED = {
    "--config set:schedule.warm": ["set:schedule.warmup_steps.", "set:schedule.warmup_steps="],
    "--config set::WarmupCosine.warm": ["set::WarmupCosine.warmup_steps="],
    "--config del::WarmupC": ["del::WarmupCosine ", *CLASS],
    "--config set::Transformer.num_layers=": ["set::Transformer.num_layers=4 "],
    "--config 'set:**.num_layers=": ["set:**.num_layers=4 "],
    "--diff=deb": ["--diff=debug "],
    "--diff=runs/": ["--diff=runs/one/", "--diff=runs/two.json "],
    "--diff=./ru": ["--diff=./runs/"],
}


def follow(index: Index, words: str) -> list[str]:
    """The words that may stand where `fidgpt-train WORDS` ends."""
    found = candidates(read_line(f"fidgpt-train {words}"), index)
    return [one.text + (" " if one.is_whole else "") for one in found]


@pytest.mark.parametrize("words", COMPLETED)
def test_what_may_follow(
    kept_index: Index, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "two.json").touch()
    assert sorted(follow(kept_index, words)) == sorted(COMPLETED[words])


def test_names_of_a_project_are_whole_or_bare(kept_index: Index) -> None:
    entry = {"doc": "", "arguments": [{"name": "width", "type": "int", "default": "16"}]}
    named = {
        "configs": ["lab.configs.narrow", "lab.configs.debug", "lab.a.twice", "lab.b.twice"],
        "fiddlers": ["lab.fiddlers.narrow_it"],
        "tags": ["lab.tags.Heat"],
    }
    index = kept_index | {
        kind: kept_index[kind] | dict.fromkeys(names, entry) for kind, names in named.items()
    }
    assert follow(index, "--config config:nar") == ["config:narrow ", "config:narrow("]
    assert follow(index, r"--config config:narrow\(w") == ["config:narrow(width="]
    assert follow(index, "--config config:twi") == []
    assert follow(index, "--config config:deb") == ["config:debug "]
    assert follow(index, "--config fiddler:narrow_it")[0] == "fiddler:narrow_it "
    assert follow(index, "--config tag:Heat") == ["tag:Heat="]
    assert "config:narrow " not in follow(index, "--config config:")
