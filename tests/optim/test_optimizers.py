"""AdamW, AdEMAMix, Lion, Muon and parameter groups."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from small_models import drawn, filled
from torch import nn

from fidgpt import configs
from fidgpt.configs import debug
from fidgpt.fiddlers import untie_embeddings, use_muon, use_mup
from fidgpt.optim import (
    ByName,
    Lion,
    Muon,
    ParameterGroups,
    Rule,
    ScheduleFreeAdamW,
    adamw,
    ademamix,
    decay_matrices,
    is_hidden_matrix,
    is_matrix,
    is_table,
    is_vector,
    mup_groups,
    split_hidden_matrices,
)
from fidgpt.parallel import DataParallel
from fidgpt.placement import Shard
from fidgpt.processes import Processes
from fidgpt.runs.building import build_trainer
from fidgpt.train.optimizer_groups import make_optimizer
from fidgpt.train.run_directory import RunError


def test_adamw_steps_as_the_unfused_loop():
    model, reference = Stack(), Stack()
    settings: dict[str, Any] = dict(lr=1e-2, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.3)
    fused = adamw(model.parameters(), **settings)
    train(model, fused)
    train(reference, torch.optim.AdamW(reference.parameters(), **settings, foreach=False))
    torch.testing.assert_close(list(model.parameters()), list(reference.parameters()))
    assert fused.defaults["fused"] is True


def test_lion_steps_as_in_its_paper() -> None:
    weights = nn.Parameter(drawn(5, 3).double())
    optimizer = Lion([weights], lr=0.1, betas=(0.9, 0.99), weight_decay=0.5)
    theta, mean = weights.detach().numpy().copy(), np.zeros((5, 3))
    for step in range(5):
        gradient = np.random.default_rng(step).normal(size=(5, 3))
        weights.grad = torch.from_numpy(gradient)
        optimizer.step()
        update = np.sign(0.9 * mean + 0.1 * gradient)
        theta = theta - 0.1 * (update + 0.5 * theta)
        mean = 0.99 * mean + 0.01 * gradient
        np.testing.assert_allclose(weights.detach().numpy(), theta, rtol=1e-12)
    np.testing.assert_allclose(optimizer.state[weights]["mean"].numpy(), mean, rtol=1e-12)


SETTINGS: dict[str, Any] = dict(lr=1e-2, weight_decay=0.3)


class Stack(nn.Module):
    """Tables, a square and a flat matrix, a stack of matrices, and vectors."""

    MATRICES = ("experts",)

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 6)
        self.square = nn.Linear(6, 6)
        self.flat = nn.Linear(6, 10, bias=False)
        self.experts = nn.Parameter(torch.empty(3, 10, 4))
        filled(self, std=1.0)


def train(model: Stack, optimizer: torch.optim.Optimizer) -> None:
    for step in range(4):
        give_gradients(model, step)
        optimizer.step()


def give_gradients(model: Stack, step: int) -> None:
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = drawn(*parameter.shape, seed=10 * step + number)


def test_hidden_matrices_step_as_torch_muon_and_the_rest_as_torch_adamw() -> None:
    model, reference = Stack(), Stack()
    train(model, Muon(split_hidden_matrices(model), **SETTINGS, betas=(0.8, 0.9), eps=1e-6))
    # Torch's own takes no stack of matrices: each becomes a parameter.
    single = [nn.Parameter(one.clone()) for one in reference.experts.detach()]
    hidden = [reference.square.weight, reference.flat.weight]
    muon = torch.optim.Muon(hidden + single, **SETTINGS, adjust_lr_fn="match_rms_adamw")
    vectors = {"params": [reference.square.bias], "weight_decay": 0.0}
    tables = {"params": [reference.embedding.weight]}
    adamw = torch.optim.AdamW([tables, vectors], **SETTINGS, betas=(0.8, 0.9), eps=1e-6, fused=True)
    for step in range(4):
        give_gradients(reference, step)
        assert reference.experts.grad is not None
        for one, gradient in zip(single, reference.experts.grad, strict=True):
            one.grad = gradient
        muon.step()
        adamw.step()
    with torch.no_grad():
        reference.experts.copy_(torch.stack([*single]))
    for (name, own), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
        # Where a CPU would emulate products in bfloat16, ours are in float32.
        is_emulated = not torch.ops.mkldnn._is_mkldnn_bf16_supported()
        bound = 1e-3 if is_emulated and name in {"square.weight", "flat.weight", "experts"} else 0
        torch.testing.assert_close(own, theirs, rtol=0, atol=bound, msg=name)


def test_groups_are_split_and_keep_their_settings() -> None:
    groups = split_hidden_matrices(Stack(), lr_scale=2.0)
    keys = {"name": "", "orthogonal": False, "lr_scale": 1.0, "weight_decay": None}
    assert [[group.get(key, default) for key, default in keys.items()] for group in groups] == [
        ["matrices", False, 1.0, None],
        ["hidden matrices", True, 2.0, None],
        ["vectors", False, 1.0, 0.0],
    ]
    assert [len(group["params"]) for group in groups] == [1, 3, 1]


class Mixer(nn.Module):
    """A matrix, and parameters of two and three dimensions that are none."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.inside = nn.Linear(8, 8, bias=False)
        self.filters = nn.Conv1d(8, 8, 4, groups=8, bias=False)
        self.gate = nn.Linear(8, 1, bias=False)
        self.scales = nn.Parameter(torch.ones(3, 8))
        self.lm_head = nn.Linear(8, 11, bias=False)
        self.unembedding = self.lm_head


def test_filters_gates_scales_and_a_table_of_any_name_are_no_matrices() -> None:
    model = Mixer()
    groups = split_hidden_matrices(model)
    orthogonal = [p for group in groups if group.get("orthogonal") for p in group["params"]]
    assert [*map(id, orthogonal)] == [id(model.inside.weight)]
    chosen = split_hidden_matrices(model, match=lambda name, _: name == "scales")
    assert [len(group["params"]) for group in chosen if group.get("orthogonal")] == [1]


def test_with_mup_the_hidden_matrices_keep_their_rate() -> None:
    cfg = debug()
    use_muon(cfg, matrix_scale=0.5)
    use_mup(cfg, base_dim=8)
    model = build_trainer(cfg).model
    groups = {group["name"]: group for group in build_trainer(cfg).groups(model)}
    assert groups["hidden matrices"]["lr_scale"] == 0.5
    assert groups["hidden matrices"]["width_scale"] == (8 / 32) ** 0.5
    assert groups["hidden matrices"]["orthogonal"]


def test_matrices_decay_and_vectors_do_not():
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Embedding(3, 8), nn.Linear(4, 8))
    model[3].weight = model[0].weight
    matrices, vectors = decay_matrices(model)
    assert {p.dim() for p in matrices["params"]} == {2}
    assert {p.dim() for p in vectors["params"]} == {1}
    assert "weight_decay" not in matrices
    assert vectors["weight_decay"] == 0.0
    grouped = [id(p) for p in matrices["params"] + vectors["params"]]
    assert sorted(grouped) == sorted(map(id, model.parameters()))  # each one once


def test_frozen_parameters_and_empty_groups_are_left_out():
    model = nn.Linear(4, 4, bias=False)
    assert [group["name"] for group in decay_matrices(model)] == ["matrices"]
    model.weight.requires_grad_(False)
    assert decay_matrices(model) == []


def test_hidden_matrices_alone_learn_by_their_width():
    model = model_of("debug", untie_embeddings)
    groups = {group["name"]: group for group in mup_groups(model, base_dim=8)}
    assert groups["hidden matrices"]["width_scale"] == 8 / 32
    assert all("width_scale" not in groups[name] for name in ("matrices", "vectors"))
    tables = {id(model.get_parameter(f"{name}.weight")) for name in ("embedding", "unembedding")}
    assert {id(p) for p in groups["matrices"]["params"]} == tables
    assert groups["vectors"]["weight_decay"] == 0.0
    grouped = [id(p) for group in groups.values() for p in group["params"]]
    assert sorted(grouped) == sorted(map(id, model.parameters()))


DECAY = [Rule("matrices", match=is_matrix), Rule("vectors", match=is_vector, weight_decay=0.0)]
Groups = list[dict[str, Any]]


def model_of(name: str, *changes: Any) -> Any:
    cfg = getattr(configs, name)()
    for change in changes:
        change(cfg)
    return build_trainer(cfg).model


def named(model: nn.Module, groups: Groups) -> dict[str, list[str]]:
    names = {id(p): name for name, p in model.named_parameters()}
    return {group["name"]: [names[id(p)] for p in group["params"]] for group in groups}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["debug", "gpt2_124m", "gpt_oss_20b"])
def test_rules_can_do_what_decay_matrices_does(name: str) -> None:
    model = model_of(name)
    own, theirs = ParameterGroups(DECAY)(model), decay_matrices(model)
    assert named(model, own) == named(model, theirs)
    assert [{**group, "params": 0} for group in own] == [{**group, "params": 0} for group in theirs]


@pytest.mark.slow
def test_rules_add_up() -> None:
    model = model_of("gpt2_124m")
    rules = [
        *DECAY,
        Rule("tables", match=is_table, lr_scale=0.1),
        Rule("queries", match=ByName(r"attention\.query\."), lr_scale=0.5, weight_decay=0.2),
        Rule("first queries", match=ByName(r"\.0\.attention\.query\."), lr_scale=0.5),
    ]
    groups = {group["name"]: group for group in ParameterGroups(rules)(model)}
    members = named(model, list(groups.values()))
    assert members["matrices, tables"] == ["embedding.weight", "embedding.positions.weight"]
    assert members["vectors, queries, first queries"] == ["blocks.0.attention.query.bias"]
    assert len(members["matrices, queries"]) == 11
    assert groups["matrices, tables"]["lr_scale"] == 0.1
    assert groups["vectors, queries, first queries"]["lr_scale"] == 0.25
    assert groups["vectors, queries"]["weight_decay"] == 0.2
    assert "weight_decay" not in groups["matrices"] and "lr_scale" not in groups["matrices"]
    all_of_them = [name for names in members.values() for name in names]
    assert sorted(all_of_them) == sorted(name for name, _ in model.named_parameters())


def test_parameters_without_a_rule_use_the_defaults() -> None:
    model = model_of("debug")
    rule = Rule("norms", match=ByName("norm"), settings={"eps": 1.0})
    *_, others = ParameterGroups([rule])(model)
    assert others.keys() == {"name", "params"} and others["name"] == "others"
    optimizer = torch.optim.AdamW(ParameterGroups(DECAY[1:])(model), lr=0.1, weight_decay=0.3)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0, 0.3]


def test_what_a_parameter_is() -> None:
    model = model_of("gpt_oss_20b", lambda cfg: setattr(cfg.model, "num_layers", 2))
    kinds = {
        name.rpartition("blocks.0.")[2]: [
            kind.__name__
            for kind in (is_matrix, is_vector, is_table, is_hidden_matrix)
            if kind(name, p)
        ]
        for name, p in model.named_parameters()
    }
    assert kinds["embedding.weight"] == kinds["unembedding.weight"] == ["is_matrix", "is_table"]
    hidden = ["is_matrix", "is_hidden_matrix"]
    assert kinds["mlp.experts.up"] == kinds["mlp.router.weight"] == hidden
    assert kinds["mlp.experts.up_bias"] == kinds["attention.sinks"] == ["is_vector"]


def test_a_rule_about_nothing_is_a_mistake() -> None:
    model = nn.Linear(4, 4)
    model.bias.requires_grad_(False)  # not in a group, but known
    assert named(model, ParameterGroups(DECAY)(model)) == {"matrices": ["weight"]}
    rules = [*DECAY, Rule("heads", match=ByName("haed"))]
    with pytest.raises(ValueError, match="no parameter matches the rule 'heads'"):
        ParameterGroups(rules)(model)


def test_schedule_free_adamw_steps_as_in_its_paper() -> None:
    weights = nn.Parameter(drawn(5, 3).double())
    optimizer = ScheduleFreeAdamW([weights], lr=0.0, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.3)
    x = z = weights.detach().numpy().copy()
    v, squares = np.zeros((5, 3)), 0.0
    for t in range(1, 8):
        lr = 0.1 * min(1.0, (t - 1) / 3)  # a warm-up, which begins at 0
        gradient = np.random.default_rng(t).normal(size=(5, 3))
        y = 0.1 * z + 0.9 * x
        np.testing.assert_allclose(weights.detach().numpy(), y, rtol=1e-12)
        optimizer.param_groups[0]["lr"] = lr
        weights.grad = torch.from_numpy(gradient)
        optimizer.step()
        v = 0.95 * v + 0.05 * gradient**2
        rate = lr * np.sqrt(1 - 0.95**t)
        z = z - rate * (gradient / (np.sqrt(v) + 1e-6) + 0.3 * y)
        squares += rate**2
        c = rate**2 / squares if squares else 0.0
        x = (1 - c) * x + c * z
    optimizer.swap_weights()
    np.testing.assert_allclose(weights.detach().numpy(), x, rtol=1e-12)
    np.testing.assert_allclose(optimizer.state[weights]["z"].numpy(), z, rtol=1e-12)


def test_ademamix_is_that_of_the_paper() -> None:
    # arXiv:2409.03137, algorithm 1 and equations 4 and 5, in float64.
    pytest.importorskip("pytorch_optimizer")
    weight = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    expected, fast, slow, square = weight.detach().clone(), 0.0, 0.0, 0.0
    settings = {"lr": 0.1, "weight_decay": 0.2, "eps": 1e-8}
    optimizer = ademamix([weight], betas=(0.9, 0.95, 0.999), warmup_steps=4, **settings)
    for step in range(1, 4):
        weight.grad = gradient = torch.tensor([0.3, -0.1 * step], dtype=torch.float64)
        optimizer.step()
        share = step / 4
        log_fast, log_slow = math.log(0.9), math.log(0.999)
        beta = math.exp(log_fast * log_slow / ((1 - share) * log_slow + share * log_fast))
        fast, slow = 0.9 * fast + 0.1 * gradient, beta * slow + (1 - beta) * gradient
        square = 0.95 * square + 0.05 * gradient**2
        root = (square / (1 - 0.95**step)).sqrt() + 1e-8
        update = (fast / (1 - 0.9**step) + 5.0 * share * slow) / root
        expected -= 0.1 * (update + 0.2 * expected)
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-12, atol=0)


class ByWholeNorm(torch.optim.SGD):
    """Divides gradients by the norm of the whole matrix."""

    def step(self, closure: Any = None) -> Any:
        for weight in self.param_groups[0]["params"]:
            weight.grad /= weight.grad.norm()
        return super().step(closure)


class InBlocks(torch.optim.AdamW):
    """Keeps something of each weight as a tensor that is made of others."""

    def step(self, closure: Any = None) -> Any:
        made_of_others = torch.zeros(1)
        setattr(made_of_others, "__tensor_flatten__", None)  # noqa: B010
        self.state[self.param_groups[0]["params"][0]]["other"] = made_of_others


@pytest.mark.parametrize(
    ("make", "refusal"),
    [
        (ByWholeNorm, "needs whole matrices, which an axis .* an optimizer of fidgpt, or a size"),
        (torch.optim.Muon, "needs whole matrices"),
        (InBlocks, "keeps its state in blocks of numbers with a scale"),
        (torch.optim.AdamW, None),
        (partial(Lion, lr=0.1), None),
    ],
)
def test_an_optimizer_of_whole_matrices_is_refused_where_an_axis_divides_them(
    make: Any, refusal: str | None
) -> None:
    whole, part = nn.Parameter(torch.zeros(4, 4)), nn.Parameter(torch.zeros(4, 4))
    vars(part)["shards"] = (Shard(Processes(size=2), dim=0, size=8, num_shards=2),)
    make_optimizer(make, [{"params": [whole], "lr": 0.1}], parallel=DataParallel())
    groups = [{"params": [whole, part], "lr": 0.1}]
    if refusal is None:
        make_optimizer(make, groups, parallel=DataParallel())
        return
    with pytest.raises(RunError, match=refusal):
        make_optimizer(make, groups, parallel=DataParallel())
