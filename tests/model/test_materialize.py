"""From the meta device to memory: ties hold, values follow seed and name, nothing is garbage."""

import copy
import itertools
from collections.abc import Callable
from functools import partial

import pytest
import torch
from small_models import CPU, M, make_model, meta_model, started
from torch import Tensor, nn

from fidgpt.model import Constant, init, initialize, materialize, token_table
from fidgpt.model.materialization import check_inits


def on_meta(build: Callable[[], M]) -> M:
    with torch.device("meta"):
        return build()


def begun(build: Callable[[], M], seed: int = 0) -> M:
    return started(on_meta(build), seed=seed)


def values(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def is_tied(model: nn.Module) -> bool:
    weight = model.get_parameter("embedding.weight")
    names = [name for name, _ in model.named_parameters()]
    return weight is model.get_parameter("unembedding.weight") and "unembedding.weight" not in names


def test_every_parameter_gets_memory_and_keeps_what_it_carried():
    model = meta_model()
    model.norm.weight.requires_grad_(False)
    inits = {name: vars(parameter)["init"] for name, parameter in model.named_parameters()}
    materialize(model, device=CPU, seed=0)
    for name, parameter in model.named_parameters():
        assert type(parameter) is nn.Parameter
        assert parameter.device == CPU
        assert parameter.isfinite().all()
        assert vars(parameter)["init"] is inits[name]
        assert parameter.requires_grad == (name != "norm.weight")


def test_what_is_shared_stays_one():
    model = meta_model()
    assert is_tied(model)
    assert is_tied(started(model))
    assert is_tied(model.to(torch.bfloat16))
    assert is_tied(model.to("cpu", torch.float32))
    assert is_tied(copy.deepcopy(model))
    assert len({id(block.attention.rope) for block in model.blocks}) == 1


def test_values_follow_the_seed():
    first, again, other = (values(make_model(seed=seed)) for seed in (3, 3, 4))
    for name, value in first.items():
        assert torch.equal(value, again[name])
        assert torch.equal(value, other[name]) == ("norm" in name)
    weights = [value for name, value in first.items() if "query" in name or ".out." in name]
    assert not any(torch.equal(*pair) for pair in itertools.combinations(weights, 2))


def test_another_layer_leaves_the_others_as_they_were():
    few, many = values(make_model(num_layers=2)), values(make_model(num_layers=3))
    untied = values(make_model(num_layers=2, tied=False))
    assert few.keys() < many.keys()
    for name, value in few.items():
        assert torch.equal(value, many[name])
        assert torch.equal(value, untied[name])


def test_a_model_with_memory_starts_in_place_and_equally():
    model = make_model(seed=5)
    expected, before = values(model), list(model.parameters())
    nn.init.zeros_(model.embedding.weight)
    materialize(model, device=CPU, seed=5)
    assert all(torch.equal(value, expected[name]) for name, value in values(model).items())
    assert all(now is then for now, then in zip(model.parameters(), before, strict=True))
    initialize(model, seed=2)
    expected = values(make_model(seed=2))
    assert all(torch.equal(value, expected[name]) for name, value in values(model).items())


def test_torchs_own_modules_start_themselves_from_the_seed():
    def build():
        return nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64))

    first, again, other = (values(begun(build, seed)) for seed in (0, 0, 1))
    assert (first["1.weight"] == 1).all()
    assert (first["1.bias"] == 0).all()
    bound = 1 / 8  # nn.Linear draws from a uniform distribution up to 1 / sqrt(in_features)
    for name in ("0.weight", "2.weight"):
        assert 0.9 * bound < first[name].abs().max() <= bound
        assert torch.equal(first[name], again[name])
        assert not torch.equal(first[name], other[name])
    assert not torch.equal(first["0.weight"], first["2.weight"])


def test_a_table_keeps_its_own_start_in_a_module_that_resets_itself():
    """A Linear of torch, with a bias, holds the table that another part brought with it."""

    def build():
        model = nn.ModuleDict({"reader": nn.Module(), "scorer": nn.Linear(8, 100)})
        table = token_table(vocab_size=100, hidden_dim=8, init=Constant(7.0))
        for part in model.values():
            part.weight = table
        return model

    assert (begun(build).get_parameter("scorer.weight") == 7).all()


class Bare(nn.Module):
    """Has a parameter and does not say how it starts."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(3))


def test_an_init_is_enough():
    bare = on_meta(Bare)
    init.with_init(bare.scale, Constant(2.0))
    assert (started(bare).scale == 2).all()


class Buffered(nn.Module):
    """Holds a table of which a reset fills the first `entries`."""

    table: Tensor

    def __init__(self, entries: int = 4, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.entries = entries
        self.register_buffer("table", torch.empty(4, dtype=dtype), persistent=False)
        self.register_buffer("nothing", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.table[: self.entries] = 1


def test_buffers_are_filled_by_the_module_that_lost_them():
    norm = begun(lambda: nn.Sequential(nn.BatchNorm1d(5)))[0]
    assert (norm.get_buffer("running_mean") == 0).all()
    assert (norm.get_buffer("running_var") == 1).all()
    assert norm.get_buffer("num_batches_tracked") == 0
    assert (begun(Buffered).get_buffer("table") == 1).all()


def arange() -> nn.Module:
    model = nn.Identity()
    model.register_buffer("table", torch.arange(4))
    return model


class Forgetful(Bare):
    def reset_parameters(self) -> None:
        self.other = 1


TYPES = (torch.float32, torch.int64, torch.bool, torch.bfloat16)
UNFILLED = [partial(Buffered, entries, dtype) for entries in (0, 3) for dtype in TYPES]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (Bare, r"\(Bare\) does not .* scale: .* reset_parameters\(\) that fills them, or give"),
        (
            lambda: nn.MultiheadAttention(4, 2),
            r"\(MultiheadAttention\) does not .* to a class of your own that is derived from Mult",
        ),
        (arange, r"\(Identity\) does not .* table: .*that fills them\.$"),
        (Forgetful, r"\(Forgetful\) leaves scale without values"),
        *((build, r"\(Buffered\) leaves table without values") for build in UNFILLED),
    ],
)
def test_tensors_without_values_are_errors(build, message):
    with pytest.raises(ValueError, match="^1 " + message):
        begun(lambda: nn.Sequential(nn.BatchNorm1d(2), build()))
    if "does not" in message:  # shows without memory
        with pytest.raises(ValueError, match="^1 " + message):
            check_inits(on_meta(lambda: nn.Sequential(nn.BatchNorm1d(2), build())))
