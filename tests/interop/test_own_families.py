"""Families of an installed project: read, generated with, and written as fidgpt's own are."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fidgpt.graph import ConfigError
from fidgpt.interop import save_hf
from fidgpt.interop.hugging_face.files import layout_of
from fidgpt.interop.hugging_face.settings import FAMILIES, families
from fidgpt.model import LanguageModel, generation

from .recipes import llama, rope
from .test_families import random_model, random_tokens

pytestmark = pytest.mark.xdist_group("transformers")

DOCS = Path(__file__).parents[2] / "docs" / "models.md"
Install = Callable[..., None]
Load = Callable[[Path], LanguageModel]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """`install(name, text)`: a project with a module `families`."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(name: str, text: str) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        (tmp_path / name / "families.py").write_text(text)
        about = tmp_path / f"{name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[fidgpt.project]\n{name} = {name}\n")

    return install


def documented(file: str = "families", most: int = 30) -> str:
    """A family of the documentation."""
    found = re.search(rf"```python\n# lab/{file}.py\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert found and len([line for line in found[1].splitlines() if line.strip()]) < most
    return found[1]


@torch.no_grad()
def read_and_written(theirs: Any, load: Load, path: Path, name: str) -> LanguageModel:
    """Our model of the files of theirs, equal to it and to what transformers reads of ours."""
    theirs.save_pretrained(path / "theirs")
    ours, tokens = load(path / "theirs"), random_tokens()
    assert (ours(tokens) - theirs(tokens).logits).abs().max() < 1e-5
    assert save_hf(ours, path / "ours", seq_len=64) == name
    back = type(theirs).from_pretrained(path / "ours").eval()
    assert torch.equal(back(tokens).logits, theirs(tokens).logits)
    return ours


def test_the_documented_family_works_in_both_directions(
    install: Install, load: Load, tmp_path: Path
) -> None:
    settings = "layer_norm_eps: 0.001, use_parallel_residual: false"
    scaled = rope(1e4, text="partial_rotary_factor: 0.5")
    theirs = random_model(llama("stablelm", 1e4, settings, rope_parameters=scaled))
    install("labone", documented())
    assert families()["stablelm"].config.__module__ == "labone.families"  # and not fidgpt's
    ours = read_and_written(theirs, load, tmp_path, "StableLmForCausalLM")
    start = random_tokens()[:, :5]
    expected = theirs.generate(start, max_new_tokens=12, do_sample=False, eos_token_id=None)
    greedy = generation.Sampling(seeds=[0, 0], temperature=0.0, top_k=None)
    steps = generation.write(ours, start.tolist(), num_tokens=12, context=48, choose=greedy)
    assert [list(row) for row in zip(*steps, strict=True)] == expected[:, 5:].tolist()
    failing = documented().replace("fixed=", 'readings={"eps": "norm.width"}, fixed=')
    install("labfour", failing.replace('"stablelm"', '"of_a_wrong_reading"'))
    vars(ours.norm)["eps"] = 0.5
    with pytest.raises(
        ConfigError, match=r"StableLm\w+ cannot describe it: the model has no eps: "
    ):
        save_hf(ours, tmp_path / "none", seq_len=64)


def test_the_documented_family_with_components_of_its_own_works_too(
    install: Install, load: Load, tmp_path: Path
) -> None:
    theirs = random_model(llama("bitnet", 1e4, "hidden_act: relu2"))
    install("labbit", documented("bitnet", most=70))
    ours = read_and_written(theirs, load, tmp_path, "BitNetForCausalLM")
    odd = {"blocks.*.mlp_norm": ..., "blocks.*.mlp_nrm": "odd"}
    with pytest.raises(ConfigError, match=r"no tensor for blocks\.0.* its `tensors`: .*mlp_nrm"):
        layout_of(families()["bitnet"].near("odd", tensors=odd), ours, {})


def test_a_family_of_a_project_replaces_one_of_fidgpt_and_two_projects_collide(
    install: Install,
) -> None:
    install("labtwo", documented().replace('"stablelm"', '"llama"'))
    own = families()
    assert own["llama"].architecture == "StableLmForCausalLM"
    assert [*own] == [family.model_type for family in FAMILIES]  # in the same order
    install("labthree", documented().replace('"stablelm"', '"llama"'))
    with pytest.raises(ConfigError, match=r"'llama' is a family of labt\w+\.families and of lab"):
        families()
    install("labbroken", "1 / 0")
    with pytest.raises(ConfigError, match=r"labbroken\.families cannot be imported .*ZeroDivision"):
        families()
