"""Components that would fail in a run are named before it, with the remedy."""

import fiddle as fdl
import pytest
import torch
from torch import Tensor, nn

from fidgpt.compose.composition import compose
from fidgpt.compose.runs import build_trainer
from fidgpt.graph import ConfigError, find
from fidgpt.model import Attention, AttentionContext, InitError


class Elsewhere(nn.Module):
    """Makes a tensor on the CPU, wherever the model is."""

    def __init__(self, *, hidden_dim: int) -> None:
        super().__init__()
        self.value = nn.Linear(hidden_dim, hidden_dim)

    def forward(self, x: Tensor, layout: AttentionContext | None) -> Tensor:
        return self.value(x) * torch.arange(x.shape[1]).unsqueeze(-1)


class Narrow(Elsewhere):
    """Takes half of what comes in, and gives it to a matrix for all of it."""

    def forward(self, x: Tensor, layout: AttentionContext | None) -> Tensor:
        return self.value(x[..., ::2])


class Asking(Elsewhere):
    """Takes those positions only whose first number is above 0."""

    def forward(self, x: Tensor, layout: AttentionContext | None) -> Tensor:
        return self.value(x[x[..., 0] > 0]).reshape(x.shape)


class Metaphor(Elsewhere):
    """Fails with a word in which torch's name of a device stands."""

    def forward(self, x: Tensor, layout: AttentionContext | None) -> Tensor:
        raise ValueError("no metaphors here")


class Unstarted(nn.Module):
    """Fills a parameter in its constructor, and nowhere else."""

    def __init__(self, *, hidden_dim: int) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.ones(hidden_dim))

    def forward(self, x: Tensor, layout: AttentionContext | None) -> Tensor:
        return x * self.rate


def with_attention(kind: type[nn.Module]):
    cfg = compose(["config:debug"]).config
    for attention in find(cfg.model, Attention):
        del attention.head_dim
        cfg.model.blocks[0].attention = type(attention)(kind, hidden_dim=32)
    return cfg


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Elsewhere, r"blocks\.0\.attention \(Elsewhere\), test_trial\.py:\d+: .*\n.*=x\.device"),
        (Asking, r"blocks\.0\.attention \(Asking\), test_trial\.py:\d+: .*\n.*=x\.device"),
        (Metaphor, r"blocks\.0\.attention \(Metaphor\), test_trial\.py:\d+: .*\n.*--debug"),
        (Narrow, r"blocks\.0\.attention \(Narrow\), test_trial\.py:\d+: .*\n.*--debug"),
    ],
)
def test_the_part_and_the_line_are_named(kind: type[nn.Module], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_trainer(with_attention(kind))


def test_a_parameter_without_init_is_reported_before_the_run() -> None:
    with pytest.raises(
        InitError, match=r"blocks\.0\.attention \(Unstarted\) .* initial values of rate"
    ):
        build_trainer(with_attention(Unstarted))


@pytest.mark.parametrize(
    "directive",
    [
        "use:model.blocks[0].attention.mask=Window(size=8)",
        "use:model.blocks[0].attention.mask=And(masks=(causal, Window(size=8)))",
        "use:model.blocks[0].attention.kernel=flex",
        "use:model.blocks[0].attention.linear=LoRALinear(rank=4)",
        "use:model.layout=PackedDocuments(end_of_text=256)",
        "set:model.blocks[0].attention.scores=[Softcap(cap=50), ALiBi()]",
    ],
)
def test_a_part_is_put_as_its_place_calls_it(directive: str) -> None:
    build_trainer(compose(["config:debug", directive]).config)


def test_a_mask_that_is_named_alone_is_no_mask() -> None:
    cfg = compose(["config:debug", "use:model.blocks[0].attention.mask=Window"]).config
    with pytest.raises(ConfigError, match="size is required by Window"):
        build_trainer(cfg)


class Growing(torch.optim.SGD):
    """An optimizer of the user's that needs numbers to begin with."""

    def __init__(self, params, *, lr: float = 0.1) -> None:
        super().__init__(params, lr=lr)
        self.begun = [p.sum().item() for group in self.param_groups for p in group["params"]]


@pytest.mark.parametrize(
    ("directives", "message", "sources"),
    [
        (["use:optimizer=torch.optim.Adam(betas=(0.9, 1.5))"], "Invalid beta .*1.5", ["betas"]),
        (["use:optimizer=torch.optim.Adam(eps=-1e-5)"], "Invalid epsilon value: -1e-05", ["eps"]),
        (["fiddler:use_sgd", "set:optimizer.lr=inf"], "lr=inf must be finite", ["lr"]),
        (["use:optimizer=Muon"], "no parameter group is orthogonal", []),
    ],
)
def test_what_an_optimizer_rejects_is_reported_before_a_run(
    directives: list[str], message: str, sources: list[str]
) -> None:
    cfg = compose(["config:debug", *directives]).config
    with pytest.raises(ConfigError, match=f"^optimizer: {message}") as caught:
        build_trainer(cfg)
    assert caught.value.place == "optimizer"
    assert list(caught.value.sources) == [f"optimizer.{name}" for name in sources] or not sources


def test_groups_that_cannot_be_made_are_reported_too() -> None:
    never = "use:groups=ParameterGroups([Rule(none, match=ByName('nothing'))])"
    with pytest.raises(ConfigError, match="^groups: no parameter matches the rule 'none'"):
        build_trainer(compose(["config:debug", never]).config)


def test_an_optimizer_that_needs_numbers_is_left_to_the_run() -> None:
    cfg = compose(["config:debug"]).config
    cfg.optimizer = fdl.Partial(Growing)
    build_trainer(cfg)
