"""The index: what it holds, when it is rebuilt, and that nothing breaks where it cannot be kept."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest

from fidgpt import configs, fiddlers, tags
from fidgpt.compose import index
from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.index import build
from fidgpt.compose.index_build import parameters_of, write
from fidgpt.graph import ConfigError, find_parameter
from fidgpt.graph.reading import fitting

Index = dict[str, Any]


@pytest.fixture
def base(index_for: Callable[..., Index]) -> Index:
    return index_for([])


def entries(cfg: fdl.Buildable) -> dict[str, dict[str, Any]]:
    known = {name: one for name, one in vars(tags).items() if isinstance(one, type)}
    return {one["path"]: one for one in parameters_of(cfg, known)}


def test_names_are_those_that_the_modules_list(base: Index) -> None:
    assert list(base["configs"]) == [*configs.__all__, "chat", "from_hf"]
    assert list(base["fiddlers"]) == [*fiddlers.__all__, "use_distillation"]
    assert base["tags"]["LearningRate"] == {"doc": "Peak learning rate, per step."}
    assert json.loads(json.dumps(base)) == base
    use_text = base["fiddlers"]["use_text"]
    assert use_text["arguments"] == "(path=..., text_field='text')"
    assert use_text["doc"].startswith("Train on files")


@pytest.mark.parametrize("name", ["base", "gemma3_270m", "deepseek_v2_lite"])
def test_every_path_leads_to_its_value(name: str) -> None:
    root = getattr(configs, name)()
    for path, one in entries(root).items():
        is_unset = "unset" in one or "inherited_from" in one
        assert is_unset == (find_parameter(root, path).value is fdl.NO_VALUE)


def test_what_is_known_of_parameters() -> None:
    found = entries(configs.base())
    assert found["model.hidden_dim"] == {
        "path": "model.hidden_dim",
        "type": "int",
        "value": "256",
        "tags": ["HiddenDim"],
        "doc": "width of the residual stream.",
    }
    head_dim = found["model.blocks[0].attention.rope.head_dim"]
    source = "model.blocks[0].attention.head_dim"
    assert (head_dim["value"], head_dim["inherited_from"]) == ("64", source)
    bias = found["model.blocks[0].attention.bias"]
    assert (bias["type"], bias["value"], bias["unset"]) == ("bool", "False", True)
    shared = found["model.unembedding.weight"]
    assert (shared["node"], shared["same_as"]) == ("token_table", "model.embedding.weight")
    assert not [path for path in found if path.startswith("model.unembedding.weight.")]
    # A tag describes what the constructor does not.
    found = entries(fdl.Config(dict, width=tags.HiddenDim.new(8)))
    assert found["width"]["doc"] == "Width of the residual stream, in elements."


def test_which_components_fit() -> None:
    root, parts = configs.base(), dict(own_catalogue().parts)

    def fits(path: str) -> set[str]:
        return {*fitting(find_parameter(root, path).hint, parts)}

    ours = {"Adafactor", "Lion", "Muon", "NorMuon", "ScheduleFreeAdamW", "adamw", "ademamix"}
    assert fits("optimizer") == ours
    assert fits("precision") == {"BFloat16", "Float16", "Float32", "native_precision"}
    assert "RMSNorm" in fits("model.norm") and not {"adamw", "Attention"} & fits("model.norm")
    assert not fits("model.blocks[0].attention.bias") and not fits("samples.prompts[0]")
    # A protocol asks for its methods.
    schedules = {"Phases", "Rise", "WarmupCosine", "WarmupStableDecay", "optim.Constant"}
    assert fits("schedule") == schedules
    normal = {"DepthScaled", "FanIn", "MuP", "Normal", "TruncatedNormal"}
    others = {"Ramp", "Uniform", "UniformFanIn", "model.Constant"}
    assert fits("model.embedding.weight.init") == normal | others
    mixers = fits("model.blocks[0].attention")
    assert {"Attention", "LatentAttention"} <= mixers
    assert not {"Linear", "Embedding", "Transformer", "MoE", "RMSNorm"} & mixers
    assert not {"Block", "ParallelBlock", "PostNormBlock"} & mixers  # which hold one
    # A function takes as many arguments.
    kernels = fits("model.blocks[0].attention.kernel")
    assert {"blockwise", "eager", "fastest", "flex", "sdpa"} <= kernels
    assert not {"Linear", "Attention", "causal"} & kernels
    # A function of known types, or an object that is called like one.
    selecting = {"ByName", "is_adapter", "is_hidden_matrix", "is_matrix", "is_table", "is_vector"}
    assert fits("trainable") >= selecting and len(fits("trainable")) < 9
    assert {"ParameterGroups", "decay_matrices", "mup_groups"} <= fits("groups")
    assert "initial_weights" in fits("weights") and "TextFiles" not in fits("weights")


class TestKept:
    """The file: valid until something changes, and whole at every moment."""

    @pytest.fixture(autouse=True)
    def builds(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        """What was built, in place of building it."""
        built: list[Any] = []
        monkeypatch.setenv("FIDGPT_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(index, "build", lambda *asked: built.append(asked) or {"new": True})
        monkeypatch.setattr(subprocess, "Popen", lambda args, **_: built.append(args))
        return built

    def keep(self, *roots: Path, directive: str = "config:base") -> Index:
        names = [str(one) for one in roots]
        made = {"roots": names, "checksum": index.checksum(names)}
        path = index.index_path(directive)
        assert path
        write(path, made)
        return made

    def test_a_change_makes_it_stale(self, tmp_path: Path, builds: list[Any]) -> None:
        folder = tmp_path / "configs"
        folder.mkdir()
        (folder / "one.py").write_text("a = 1")
        kept = self.keep(folder)
        (folder / "__pycache__").mkdir()
        assert index.index_for([]) == kept
        (folder / "two.py").write_text("b = 2")
        assert index.index_for([]) == {"new": True}
        (folder / "two.py").unlink()
        assert index.index_for(["set:seed=1"]) == kept
        (folder / "one.py").write_text("a = 10")
        assert index.index_for([" config:base "]) == {"new": True}
        assert builds == [("config:base", ())] * 2

    def test_a_damaged_file_is_rebuilt_and_one_that_cannot_be_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = index.index_path("config:base")
        assert path
        path.parent.mkdir()
        path.write_bytes(b"{")
        assert index.index_for([], wait=False) == {"new": True}
        (tmp_path / "file").touch()
        monkeypatch.setenv("FIDGPT_CACHE", str(tmp_path / "file" / "inside"))
        self.keep()
        assert index.index_for([]) == {"new": True}
        monkeypatch.setenv("FIDGPT_CACHE", "~no-such-user/cache")
        assert index.index_path("config:base") is None
        assert index.index_for([]) == {"new": True}


@pytest.mark.slow
def test_another_process_builds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIDGPT_CACHE", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("json.py").write_text("raise SystemExit('not this one')")
    (tmp_path / "indexlab.py").write_text(
        "print('imported')\nfrom fidgpt.configs import debug\ndef mine():\n    return debug()\n"
    )
    built = build("config:indexlab.mine")
    assert built == index.index_for(["config:indexlab.mine"])
    assert {str(index.PACKAGE), str(tmp_path / "indexlab.py")} <= set(built["roots"])
    (tmp_path / "fiddle.py").write_text("raise RuntimeError('broken')")
    with pytest.raises(ConfigError, match=r"^config:base cannot be composed: RuntimeError: broken"):
        build("config:base")
