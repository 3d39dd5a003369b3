"""Checkpoints restore runs bit for bit, give new runs their weights, and refuse damage."""

import itertools
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn, optim
from torch.testing._internal.two_tensor import TwoTensor

from fidgpt import files
from fidgpt.train import CheckpointError, Checkpoints, Stateful, initial_weights
from fidgpt.train.checkpoints import manifest, newest_good

pytestmark = pytest.mark.usefixtures("one_thread")
Parameters = list[nn.Parameter]


class Tied(nn.Module):
    """A tied table, a transposed parameter, and buffers of both kinds."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, width)
        self.turned = nn.Parameter(torch.randn(width, width).t())
        self.norm = nn.BatchNorm1d(width)
        self.unembedding = nn.Linear(width, 11)
        self.unembedding.weight = self.embedding.weight
        self.register_buffer("scratch", torch.zeros(3), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.unembedding(self.norm(self.embedding(tokens) @ self.turned))


class Odd(optim.Optimizer):
    """Keeps what torch's own `load_state_dict` changes: other dtypes, strings, nested tensors.

    One of its tensors is made of two others, as quantized state is.
    """

    def __init__(self, params: Parameters) -> None:
        super().__init__(params, {"lr": 0.01, "name": "odd", "limits": (None, float("inf"))})

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor]) -> Tensor:  # pyright: ignore
        with torch.enable_grad():
            loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter, dtype=torch.bfloat16)
                    state["seen"] = torch.tensor([2**24 + 1])  # float32 would round it
                    state["kind"] = "warm"
                    state["history"] = [torch.zeros_like(parameter), ("start", 0)]
                    state["two"] = TwoTensor(torch.zeros(3), torch.ones(3))
                assert parameter.grad is not None
                state["momentum"].mul_(0.9).add_(parameter.grad)
                state["seen"] += 1
                state["two"].a.add_(parameter.grad.sum())
                assert state["kind"] == "warm" and state["seen"].dtype == torch.int64
                parameter.sub_(group["lr"] * state["momentum"] * (1 + state["seen"] % 2))
                parameter.sub_(1e-4 * state["two"].a.sum() * state["two"].b.sum())
        return loss


OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "adamw_fused": lambda p: optim.AdamW(p, lr=0.01, fused=True),
    "adamw_tensor_lr": lambda p: optim.AdamW(p, lr=torch.tensor(0.01), foreach=False),
    "sgd_momentum": lambda p: optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "lbfgs": lambda p: optim.LBFGS(p, lr=0.1, max_iter=2),
    "odd": Odd,
}


def make(name: str, seed: int = 0) -> tuple[Tied, optim.Optimizer]:
    torch.manual_seed(seed)
    model = Tied()
    if name == "lbfgs":  # takes one group, of contiguous parameters
        return model, OPTIMIZERS[name]([p for p in model.parameters() if p.is_contiguous()])
    chosen = [*model.parameters()]
    return model, OPTIMIZERS[name]([{"params": chosen[:1], "lr": 0.02}, {"params": chosen[1:]}])


def losses(model: Tied, optimizer: optim.Optimizer, steps: range) -> Iterator[str]:
    """Trains, yielding each loss as exact hexadecimal; the learning rate falls as it goes."""
    for step in steps:
        tokens = torch.randint(11, (64,), generator=torch.Generator().manual_seed(step))

        def closure(tokens: Tensor = tokens) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(tokens), (tokens * 3 + 1) % 11)
            loss.backward()
            return loss

        # torch annotates the closure's result as a float; its optimizers return what it returns.
        loss: Any = optimizer.step(closure)  # pyright: ignore
        yield loss.item().hex()
        for group in optimizer.param_groups:
            group["lr"] *= 0.7


def bits(model: Tied, optimizer: optim.Optimizer) -> list[tuple[str, Any]]:
    """Everything a run has, as text that is equal only where every bit is."""

    def text(value: Any) -> Any:
        if isinstance(value, TwoTensor):
            return ("two", text(value.a), text(value.b))
        if isinstance(value, Tensor):
            flat = value.detach().contiguous().flatten().view(torch.uint8)
            return (str(value.dtype), value.stride(), tuple(value.shape), flat.tolist())
        if isinstance(value, dict):
            return {key: text(part) for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            return (type(value).__name__, [text(part) for part in value])
        return repr(value)

    named = itertools.chain(model.state_dict().items(), optimizer.state_dict().items())
    return [(name, text(value)) for name, value in named]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_resumed_run_equals_the_run_that_never_stopped(name: str, tmp_path: Path) -> None:
    checkpoints = Checkpoints(every=5, keep_last=1)
    model, optimizer = make(name)
    head = list(losses(model, optimizer, range(5)))
    checkpoints.save(tmp_path, step=5, model=model, optimizer=optimizer, state={"at": 0.1})
    at_save = bits(model, optimizer)
    tail = list(losses(model, optimizer, range(5, 10)))
    assert len(set(head + tail)) == 10

    again, its_optimizer = make(name, seed=1)
    step, state = checkpoints.restore(tmp_path, model=again, optimizer=its_optimizer)
    assert (step, state) == (5, {"at": 0.1})
    assert bits(again, its_optimizer) == at_save
    assert list(losses(again, its_optimizer, range(5, 10))) == tail
    assert bits(again, its_optimizer) == bits(model, optimizer)


def save(run: Path, step: int, keep_last: int = 9, **state: Any) -> Tied:
    model, optimizer = make("adamw_fused", seed=step)
    checkpoints = Checkpoints(every=1, keep_last=keep_last)
    checkpoints.save(run, step=step, model=model, optimizer=optimizer, state=state)
    return model


def restore(run: Path, model: nn.Module, step: int | None = None) -> tuple[int, dict[str, Any]]:
    return Checkpoints(every=1, keep_last=9).restore(run, model=model, optimizer=None, step=step)


def names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def test_the_state_keeps_types_and_bits(tmp_path: Path) -> None:
    state = {"inf": [float("inf"), -float("inf"), -0.0, 0.1, 5e-324], "pair": (1, (None, "é"))}
    state |= {"deep": {1: True, "$float": "x", (2, "b"): {}}, "": [], "big": 2**63 - 1}
    save(tmp_path, 1, **state)
    _, back = restore(tmp_path, Tied())
    assert repr(back) == repr(state)


def test_going_on_from_an_earlier_step_sets_later_ones_aside(tmp_path: Path) -> None:
    for step in (100, 200, 300, 150):
        save(tmp_path, step, keep_last=2)
    kept = ["abandoned-step_00000200", "abandoned-step_00000300"]
    assert names(tmp_path) == [*kept, "step_00000150"]  # 100 left when 300 came


def test_a_model_that_does_not_fit_is_refused_untouched(tmp_path: Path) -> None:
    save(tmp_path, 1)
    model = Tied(width=4).double()
    model.extra = nn.Parameter(torch.ones(2))
    del model.norm.running_var
    before = model.turned.clone()
    with pytest.raises(CheckpointError) as error:
        restore(tmp_path, model)
    lines = str(error.value).splitlines()
    assert lines[0].endswith("step_00000001 does not fit this model:")
    table = "embedding.weight: float32 [11, 8] in the checkpoint, float64 [11, 4] in the model"
    assert f"  {table}" in lines
    assert "  extra: absent in the checkpoint, float32 [2] in the model" in lines
    assert "  norm.running_var: float32 [8] in the checkpoint, absent in the model" in lines
    assert torch.equal(model.turned, before)


def test_an_optimizer_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    checkpoints, model = Checkpoints(every=1, keep_last=1), save(tmp_path, 1)
    other: list[tuple[optim.Optimizer, str]] = [
        (make("sgd_momentum")[1], "saved by AdamW, and this run uses SGD"),
        (optim.AdamW(model.parameters()), r"group 0 .* gone \[\], new"),
        (optim.AdamW([{"params": [model.norm.bias]}, {"params": []}]), r"gone \['turned'\], new"),
    ]
    for optimizer, message in other:
        with pytest.raises(CheckpointError, match=message):
            checkpoints.restore(tmp_path, model=model, optimizer=optimizer)


CHECKPOINTS = Checkpoints(every=100, keep_last=3)


class Memory:
    """Remembers whatever it is given."""

    def __init__(self, **remembered: Any) -> None:
        self.remembered = remembered

    def state_dict(self) -> dict[str, Any]:
        return self.remembered

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.remembered = state


def linear() -> dict[str, Any]:
    model = nn.Linear(3, 2)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters())}


def save_stateful(run: Path, **stateful: Stateful) -> Path:
    return CHECKPOINTS.save(run, step=1, state={}, stateful=stateful, **linear())


def test_a_part_that_one_side_does_not_know_is_refused(tmp_path: Path) -> None:
    save_stateful(tmp_path, old=Memory(a=1))
    given = linear()
    before = given["model"].weight.clone()
    with pytest.raises(CheckpointError, match=r"new is not in .*\n  old in .* is no component"):
        CHECKPOINTS.restore(tmp_path, stateful={"new": Memory()}, **given)
    assert torch.equal(given["model"].weight, before)
    with pytest.raises(CheckpointError, match="old in .* is no component"):
        CHECKPOINTS.restore(tmp_path, stateful={}, **linear())


def test_a_part_in_the_place_of_another_kind_starts_from_its_initial_state(tmp_path: Path) -> None:
    path, messages = save_stateful(tmp_path, average=Memory(weights=1)), []
    average = Memory(weights=2, total=3)
    with pytest.raises(CheckpointError, match="average is not in"):
        CHECKPOINTS.restore(tmp_path, stateful={"average": average}, **linear())
    CHECKPOINTS.restore(tmp_path, stateful={"average": average}, warn=messages.append, **linear())
    assert average.remembered == {"weights": 2, "total": 3}
    assert messages == [f"average is not in {path}: it starts from its initial state."]


class Model(nn.Module):
    """A table, two blocks and a head that is the table."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(2))
        self.head = nn.Linear(width, 7, bias=False)
        self.head.weight = self.embedding.weight


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with checkpoints 1 and 2 of different weights."""
    for step in (1, 2):
        model = filled(step)
        Checkpoints(every=1, keep_last=2).save(
            tmp_path,
            step=step,
            model=model,
            optimizer=torch.optim.SGD(model.parameters()),
            state={},
        )
    return tmp_path


def filled(value: float, **arguments: Any) -> Model:
    model = Model(**arguments)
    for parameter in model.parameters():
        nn.init.constant_(parameter, value)
    return model


def values(model: Model) -> list[float]:
    return [parameter.detach().float().mean().item() for parameter in model.parameters()]


def test_all_of_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = filled(0.0)
    initial_weights(model, run)
    assert values(model) == [2.0, 2.0, 2.0]
    assert model.head.weight is model.embedding.weight
    names = "embedding.weight, blocks.0.weight, blocks.1.weight"
    assert capsys.readouterr().err == f"loaded 3 tensors (60 numbers) from {run}: {names}.\n"


def test_of_a_chosen_step_and_of_a_checkpoint_and_of_a_file(run: Path) -> None:
    model, folder = filled(0.0), run / "checkpoints" / "step_00000001"
    initial_weights(model, run, step=1)
    assert values(model) == [1.0, 1.0, 1.0]
    initial_weights(model, run / "checkpoints" / "step_00000002")
    assert values(model) == [2.0, 2.0, 2.0]
    initial_weights(model, str(folder / "model.safetensors"))
    assert values(model) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        (["embedding"], [2.0, 0.0, 0.0]),
        (["blocks.*"], [0.0, 2.0, 2.0]),
        (["blocks.1", "embedding.weight"], [2.0, 0.0, 2.0]),
    ],
)
def test_parts_of_it_by_path(
    run: Path, only: list[str], expected: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    model = filled(0.0)
    initial_weights(model, run, only=only)
    assert values(model) == expected
    _, *lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" ")[2].partition(":")[0] for line in lines] == [
        f"tensor{'s' * (expected.count(0.0) > 1)} left at initial values",
        f"tensor{'s' * (expected.count(0.0) > 1)} not used",
    ]


def test_under_other_names(run: Path) -> None:
    model = filled(0.0)
    weights = {f"old.{i}.w": torch.full((4, 4), 5.0 + i) for i in range(2)}
    safetensors.torch.save_file(weights | {"wte": torch.full((7, 4), 9.0)}, run / "x.safetensors")
    renamed = {"blocks.*.weight": "old.*.w", "embedding.weight": "wte"}
    initial_weights(model, run / "x.safetensors", renamed=renamed)
    assert values(model) == [9.0, 5.0, 6.0]
    initial_weights(model, run, only=["blocks.0"], renamed={"blocks.0": "blocks.1"})
    assert values(model) == [9.0, 2.0, 6.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"only": ["embeding"]}, r"only='embeding' matches nothing in the model, which has embed"),
        (
            {"only": ["embedding"], "renamed": {"embedding": "wte"}},
            r"does not have wte.weight \(for embedding.weight\); it has .* with `renamed`",
        ),
        ({"renamed": {"block.0": "x"}}, r"renamed={'block.0': ...} matches nothing in the model"),
        ({"step": 3}, "holds no step 3; it holds 1, 2.\nThe newest good .* 2: use .* step=2$"),
    ],
)
def test_missing_weights_are_named(run: Path, arguments: dict[str, Any], message: str) -> None:
    model = filled(0.0)
    with pytest.raises(CheckpointError, match=message):
        initial_weights(model, run, **arguments)
    with pytest.raises(CheckpointError, match=message):
        vars(initial_weights)["require_present"](model=model, path=run, **arguments)
    assert values(model) == [0.0, 0.0, 0.0]


def test_a_damaged_run_and_none_at_all(run: Path) -> None:
    (run / "checkpoints" / "step_00000002" / "model.safetensors").write_bytes(b"")
    for path in (run, run / "checkpoints" / "step_00000002"):
        with pytest.raises(CheckpointError, match=r"step_00000002 is damaged: model\.safetensors"):
            initial_weights(Model(), path)
    with pytest.raises(CheckpointError, match="holds no checkpoint: nothing was saved yet"):
        initial_weights(Model(), run / "checkpoints")
    with pytest.raises(CheckpointError, match="nowhere does not exist: name a run"):
        initial_weights(Model(), run / "nowhere")


FILES = (
    "manifest.json",
    "model.safetensors",
    "state.json",
    "optimizer.safetensors",
    "optimizer.json",
)


def stepped() -> dict[str, Any]:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


def save_at(run: Path, step: int) -> Path:
    return CHECKPOINTS.save(run, step=step, state={"at": step}, **stepped())


def restore_at(run: Path, step: int | None = None) -> tuple[int, dict[str, Any]]:
    return CHECKPOINTS.restore(run, step=step, **stepped())


def refusal(saved: Path, step: int | None = None) -> str:
    with pytest.raises(CheckpointError) as error:
        restore_at(saved, step)
    return str(error.value)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A run with the checkpoints 100 and 200."""
    save_at(tmp_path, 100)
    save_at(tmp_path, 200)
    return tmp_path


def newest(saved: Path) -> Path:
    return saved / "checkpoints" / "step_00000200"


def offer(saved: Path, step: int = 100) -> str:
    return (
        f"The newest good checkpoint is step {step}: "
        f"resume from it with --resume={saved} --resume_step={step}"
    )


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("hurt", "name"),
    [*((flip, name) for name in FILES), (truncate, FILES[1]), (Path.unlink, FILES[2])],
)
def test_a_damaged_file_is_named(hurt: Callable[[Path], None], name: str, saved: Path) -> None:
    hurt(newest(saved) / name)
    text = refusal(saved)
    first, second = text.splitlines()
    assert first.startswith(f"{newest(saved)} is damaged: {name} ")
    assert second == offer(saved)
    assert refusal(saved, 200) == text
    assert name in (manifest.damage(newest(saved)) or "")
    assert newest_good(saved) == 100
    assert restore_at(saved, 100) == (100, {"at": 100})


def test_nothing_good_is_left(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    for step in (100, 200):
        flip(newest(saved).with_name(manifest.name_of(step)) / "state.json")
    assert refusal(saved).endswith("No good checkpoint is left: start the run again.")
    nowhere = tmp_path_factory.mktemp("nowhere")
    assert refusal(nowhere).startswith(f"{nowhere}/checkpoints holds no checkpoint: nothing was")
    assert f"--resume={nowhere} starts with the first step" in refusal(nowhere)


def test_weights_alone_do_not_need_a_good_optimizer_file(saved: Path) -> None:
    flip(newest(saved) / "optimizer.safetensors")
    step, _ = CHECKPOINTS.restore(saved, model=nn.Linear(64, 64), optimizer=None)
    assert step == 200
    flip(newest(saved) / "model.safetensors")
    with pytest.raises(CheckpointError, match="newest good checkpoint is step 100: use it with"):
        CHECKPOINTS.restore(saved, model=nn.Linear(64, 64), optimizer=None)


def test_the_next_save_removes_what_a_killed_run_left(saved: Path) -> None:
    left = newest(saved).with_name(f"{files.MARK}4242")
    shutil.copytree(newest(saved), left / "step_00000300")
    (left / "lock").touch()
    assert restore_at(saved) == (200, {"at": 200})
    assert left.exists()  # reading changes nothing: another process may be writing
    save_at(saved, 250)
    assert not left.exists()


def unchanged(saved: Path) -> bool:
    names = sorted(path.name for path in (saved / "checkpoints").iterdir())
    return names == ["step_00000100", "step_00000200"] and newest_good(saved) == 200


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("step", [200, 300])
def test_a_file_that_cannot_grow(step: int, saved: Path) -> None:
    with largest_file(20_000), pytest.raises(CheckpointError) as error:  # weights take 16,640 bytes
        save_at(saved, step)
    assert unchanged(saved)
    first, second = str(error.value).splitlines()
    assert "cannot be written (File too large); it takes 0.0 MB and " in first
    assert first.endswith(
        f"MB are free: make room or raise the quota, then resume with --resume={saved}"
    )
    assert second.startswith("No partial checkpoint is left")
