"""What a run would end for after hours is found before its first step."""

import sys
from pathlib import Path

import fiddle as fdl
import pytest
import torch
from torch import nn

from fidgpt import configs, fiddlers, graph, train
from fidgpt.data import DataError
from fidgpt.graph import ConfigError, Resolved
from fidgpt.graph.edits import use
from fidgpt.model import GatedDeltaNet, LayerNormPerHead, flash_linear
from fidgpt.optim import ParameterGroups, mup_groups
from fidgpt.runs.building import build_trainer, require_present, try_model
from fidgpt.runs.directories import new_run
from fidgpt.train.estimates.facts import facts_of


def test_a_package_that_a_model_lacks_is_no_misfit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fla.ops.gated_delta_rule", None)
    cfg = configs.debug()
    fiddlers.use_gated_delta(cfg, every=0)
    graph.find(cfg.model, GatedDeltaNet)[0].recurrence = flash_linear
    with pytest.raises(ConfigError, match=r"package that the model needs is missing.*\n.*fla"):
        try_model(build_trainer(cfg))


@pytest.mark.parametrize("name", ["data", "include_path", "role"])
def test_rows_that_are_not_there_or_are_wrong_are_found(name: str, tmp_path: Path) -> None:
    cfg, error = configs.debug(), f"{name}=nowhere of the tasks does not exist"
    if name == "role":
        (tmp_path / "chat.jsonl").write_text('{"messages": [{"content": "a"}]}\n')
        fiddlers.use_conversations(cfg, str(tmp_path), template="chatml")
        error = "chat.jsonl, line 1 has the role None in message 1"
    else:
        fiddlers.use_tasks(cfg, ["core"])
        setattr(cfg.evaluators["tasks"], name, "nowhere")
    with pytest.raises(DataError, match=error):
        require_present(Resolved.of(cfg), build_trainer(cfg))


def test_the_best_by_an_evaluator_that_was_removed_is_refused() -> None:
    cfg = configs.debug()
    fiddlers.keep_best(cfg)
    cfg.evaluators = {}
    with pytest.raises(ConfigError, match="the run has no evaluator validation"):
        build_trainer(cfg)
    cfg.checkpoints.best.metric = "moe/load"  # which a module may report
    build_trainer(cfg)


@pytest.mark.parametrize("metric", ["validation/los", "validation/averaged/loss"])
def test_the_best_of_what_nothing_measures_is_refused(metric: str) -> None:
    cfg = configs.debug()
    fiddlers.keep_best(cfg, metric)
    with pytest.raises(ConfigError, match="validation measures loss, perplexity, bits_per_byte"):
        build_trainer(cfg)
    fiddlers.use_ema(cfg)
    if "averaged" in metric:
        build_trainer(cfg)


def test_memory_has_the_other_models_of_a_step() -> None:
    cfg, alone = configs.debug(), configs.debug()
    model = graph.bind(cfg).model
    cfg.step = fdl.Config(train.DistillationStep, teacher=model, weights=None)
    taught, plain = (facts_of(build_trainer(one)).memory for one in (cfg, alone))
    assert taught.others == (taught.copy or taught.weights) and not plain.others
    assert taught.activations + taught.temporary > plain.activations + plain.temporary
    assert taught.total > plain.total + taught.others


def test_a_name_that_another_run_has_taken_is_not_taken_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    cfg = configs.debug()
    runs = [new_run(cfg, directives=["config:debug"], path=None) for _ in range(2)]
    runs[1].path = runs[0].path  # started in the same second
    for run in runs:
        run.create()
    assert runs[1].path == runs[0].path.with_name(f"{runs[0].path.name}-2")
    named = new_run(cfg, directives=[], path=str(runs[0].path))
    with pytest.raises(train.RunError, match="exists already"):
        named.create()


class Scales(nn.Module):
    """Holds a stack of vectors, or a matrix: its shape does not tell."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 8)
        self.scales = nn.Parameter(torch.ones(8, 8))


def test_mup_asks_what_a_parameter_is() -> None:
    """A stack of vectors keeps its rate: "vector-like" in table 8 of Yang et al. (2022)."""
    with pytest.raises(ValueError, match=r'scales \[8, 8\] may be a matrix.*MATRICES = \("scales"'):
        mup_groups(Scales(), base_dim=2)
    for matrices, scale in (((), None), (("scales",), 0.25)):
        declared = type("Declared", (Scales,), {"MATRICES": matrices})()
        (group,) = (
            g for g in mup_groups(declared, base_dim=2) if declared.scales in {*g["params"]}
        )
        assert group.get("width_scale") == scale
    norm = nn.ModuleDict(
        {"embedding": nn.Embedding(4, 8), "norm": LayerNormPerHead(num_heads=8, head_dim=8)}
    )
    assert all("width_scale" not in group for group in mup_groups(norm, base_dim=2))


def test_an_object_takes_the_place_of_a_function() -> None:
    cfg = configs.debug()
    fiddlers.use_mup(cfg)
    use(cfg, "groups", "ParameterGroups(rules=[])", parts={"ParameterGroups": ParameterGroups})
    assert type(cfg.groups) is fdl.Config
    with pytest.raises(ConfigError, match="ParameterGroups and mup_groups both set"):
        fiddlers.use_mup(cfg)
