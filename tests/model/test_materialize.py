"""From the meta device to memory: ties hold, values follow seed and name, nothing is garbage."""

import copy
import io
from collections.abc import Callable
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

from fidgpt.model import (
    Attention,
    Constant,
    DepthScaled,
    Linear,
    Normal,
    SwiGLU,
    initialize,
    materialize,
    token_table,
)
from fidgpt.model.init import with_init
from fidgpt.model.materialization import check_inits

CPU = torch.device("cpu")
M = TypeVar("M", bound=nn.Module)


def on_meta(build: Callable[[], M]) -> M:
    with torch.device("meta"):
        return build()


def started(build: Callable[[], M], seed: int = 0) -> M:
    model = on_meta(build)
    materialize(model, device=CPU, seed=seed)
    return model


def values(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def is_tied(model: nn.Module) -> bool:
    weight = model.get_parameter("embedding.weight")
    names = [name for name, _ in model.named_parameters()]
    return weight is model.get_parameter("unembedding.weight") and "unembedding.weight" not in names


def test_every_parameter_gets_memory_and_keeps_what_it_carried(make_meta_model):
    model = make_meta_model()
    model.norm.weight.requires_grad_(False)
    inits = {name: vars(parameter)["init"] for name, parameter in model.named_parameters()}
    materialize(model, device=CPU, seed=0)
    for name, parameter in model.named_parameters():
        assert type(parameter) is nn.Parameter
        assert parameter.device == CPU
        assert parameter.isfinite().all()
        assert vars(parameter)["init"] is inits[name]
        assert parameter.requires_grad == (name != "norm.weight")


def test_a_tied_table_stays_one_parameter(make_meta_model):
    model = make_meta_model()
    assert is_tied(model)
    materialize(model, device=CPU, seed=0)
    assert is_tied(model)
    assert is_tied(model.to(torch.bfloat16))
    assert is_tied(model.to("cpu", torch.float32))
    assert is_tied(copy.deepcopy(model))


def test_a_tied_table_stays_one_parameter_through_a_file(make_model):
    model, other = make_model(seed=0), make_model(seed=1)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    assert is_tied(other)
    assert all(map(torch.equal, model.parameters(), other.parameters()))


def test_a_shared_module_stays_one(make_model):
    model = make_model()
    assert len({id(block.attention.rope) for block in model.blocks}) == 1


def test_values_follow_the_seed(make_model):
    first, again, other = (values(make_model(seed=seed)) for seed in (3, 3, 4))
    for name, value in first.items():
        assert torch.equal(value, again[name])
        assert torch.equal(value, other[name]) == ("norm" in name)


def test_equal_shapes_do_not_get_equal_values(make_model):
    model = make_model()
    weights = [block.attention.query.weight for block in model.blocks]
    weights += [model.blocks[0].attention.out.weight]
    for i, weight in enumerate(weights):
        assert not any(torch.equal(weight, other) for other in weights[:i])


def test_another_layer_leaves_the_others_as_they_were(make_model):
    few, many = values(make_model(num_layers=2)), values(make_model(num_layers=3))
    untied = values(make_model(num_layers=2, tied=False))
    assert few.keys() < many.keys()
    for name, value in few.items():
        assert torch.equal(value, many[name])
        assert torch.equal(value, untied[name])


def test_the_order_of_building_does_not_matter():
    def build(names: list[str]):
        parts = {
            "attention": lambda: Attention(hidden_dim=16, head_dim=8),
            "mlp": lambda: SwiGLU(hidden_dim=16),
            "linear": lambda: nn.Linear(16, 16),
        }
        return nn.ModuleDict({name: parts[name]() for name in names})

    names = ["attention", "mlp", "linear"]
    forwards, backwards = (values(started(lambda n=n: build(n))) for n in (names, names[::-1]))
    assert forwards.keys() == backwards.keys()
    assert all(torch.equal(value, backwards[name]) for name, value in forwards.items())


def test_a_model_with_memory_starts_in_place_and_equally(make_meta_model, make_model):
    model = make_model(seed=5)
    expected, before = values(model), list(model.parameters())
    nn.init.zeros_(model.embedding.weight)
    materialize(model, device=CPU, seed=5)
    assert all(torch.equal(value, expected[name]) for name, value in values(model).items())
    assert all(now is then for now, then in zip(model.parameters(), before, strict=True))


def test_global_random_state_is_left_alone(make_meta_model):
    model = nn.ModuleDict({"ours": make_meta_model(), "torchs": on_meta(lambda: nn.Linear(4, 4))})
    torch.manual_seed(0)
    before = torch.get_rng_state()
    materialize(model, device=CPU, seed=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_initialisations_have_their_distribution():
    def build():
        scaled = DepthScaled(init=Normal(std=0.02), num_layers=8)
        return nn.ModuleDict(
            {
                "normal": Linear(256, 512, bias=True, init=Normal(std=0.5)),
                "scaled": Linear(256, 512, init=scaled),
                "constant": Linear(4, 4, init=Constant(3.0)),
            }
        )

    model = started(build)
    weight = model.get_parameter("normal.weight")
    assert weight.mean().abs() < 5 * 0.5 / weight.numel() ** 0.5  # five standard errors
    assert weight.std().item() == pytest.approx(0.5, rel=0.01)
    assert model.get_parameter("scaled.weight").std().item() == pytest.approx(0.02 / 4, rel=0.01)
    assert (model.get_parameter("constant.weight") == 3).all()
    assert (model.get_parameter("normal.bias") == 0).all()


def test_torchs_own_modules_start_themselves_from_the_seed():
    def build():
        return nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64))

    first, again, other = (values(started(build, seed)) for seed in (0, 0, 1))
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

    assert (started(build).get_parameter("scorer.weight") == 7).all()


class Bare(nn.Module):
    """Has a parameter and does not say how it starts."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(3))


def test_a_parameter_that_nobody_starts_is_an_error():
    with pytest.raises(
        ValueError, match=r"0 \(Bare\) .* scale: .* reset_parameters\(\) that fills them, or its"
    ):
        started(lambda: nn.Sequential(Bare()))
    bare = on_meta(Bare)
    with_init(bare.scale, Constant(2.0))
    materialize(bare, device=CPU, seed=0)
    assert (bare.scale == 2).all()


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


def test_a_parameter_that_a_reset_forgets_is_an_error():
    def build():
        class Forgetful(Bare):
            def reset_parameters(self) -> None:
                self.other = 1

        return nn.Sequential(Forgetful())

    with pytest.raises(ValueError, match=r"0 \(Forgetful\) leaves scale without values"):
        started(build)


def test_what_will_not_start_shows_without_memory():
    def build():
        return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), Bare())

    with pytest.raises(
        ValueError, match=r"^2 \(Bare\) does not define the initial values of scale"
    ):
        check_inits(on_meta(build))
    check_inits(on_meta(lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))))


def test_buffers_are_filled_by_the_module_that_lost_them():
    norm = started(lambda: nn.Sequential(nn.BatchNorm1d(5)))[0]
    assert (norm.get_buffer("running_mean") == 0).all()
    assert (norm.get_buffer("running_var") == 1).all()
    assert norm.get_buffer("num_batches_tracked") == 0
    assert (started(Buffered).get_buffer("table") == 1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16])
@pytest.mark.parametrize("entries", [0, 3])
def test_a_buffer_that_stays_garbage_is_an_error(entries, dtype):
    with pytest.raises(ValueError, match=r"0 \(Buffered\) leaves table without values"):
        started(lambda: nn.Sequential(Buffered(entries, dtype)))


def test_a_buffer_without_a_reset_is_an_error():
    def build():
        model = nn.Sequential(nn.Identity())
        model[0].register_buffer("table", torch.arange(4))
        return model

    with pytest.raises(ValueError, match=r"0 \(Identity\) .* table: .*that fills them\.$"):
        started(build)
    with_memory = build()
    materialize(with_memory, device=CPU, seed=0)
    assert torch.equal(with_memory[0].get_buffer("table"), torch.arange(4))


def test_a_buffer_that_two_modules_hold_stays_one():
    def build():
        first, second = Buffered(), Buffered()
        second.table = first.table
        return nn.Sequential(first, second)

    model = started(build)
    assert model[0].table is model[1].table


def test_initialize_draws_anew(make_model):
    model = make_model(seed=1)
    initialize(model, seed=2)
    expected = values(make_model(seed=2))
    assert all(torch.equal(value, expected[name]) for name, value in values(model).items())
    assert is_tied(model)
