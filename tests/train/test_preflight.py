"""Custom components that break what they promise are named before a run; right ones pass."""

import itertools
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
import torch
from custom_modules import (
    AcrossRows,
    Annealing,
    BatchNorm,
    BatchStatistics,
    BeyondMask,
    Convolution,
    Counting,
    Documents,
    Encoder,
    FarFuture,
    Future,
    GatedUnit,
    HalfFilled,
    HashEmbedding,
    InPlace,
    KeptCount,
    LeakyBlock,
    LeakyEmbedding,
    LeakyModel,
    ListedModules,
    LostCount,
    LostNormal,
    LostResets,
    LostZeros,
    MaxNorm,
    Misdeclared,
    NextOnly,
    NotNarrow,
    NumpyNumbers,
    OutsideTensor,
    OwnBlock,
    OwnGenerator,
    Padding,
    PassesOn,
    PlainPositions,
    PrefixMixer,
    Promoting,
    PythonNumbers,
    Random,
    Recurrent,
    Remembering,
    SharedWeights,
    ShiftingMLP,
    Sparse,
    Spectral,
    Spreading,
    TokenShift,
    TrainingFuture,
    TrainOnly,
    Transposed,
    Uniform,
    Unused,
    Wide,
    WindowMixer,
    ZeroStart,
    check,
    leaky_kernel,
    own_mask,
    with_attention,
    with_block,
    with_callable,
    with_mixer,
    with_part,
)
from torch import Tensor, nn

from fidgpt import configs, data, fiddlers, model, train
from fidgpt.parallel import Mesh
from fidgpt.parallel.mesh import ALONE
from fidgpt.runs.building import build_trainer
from fidgpt.train.checks import module_trials, preflight

WRONG_MODULES: dict[str, tuple[Callable[[], fdl.Config], str]] = {
    "future": (partial(with_mixer, Future), "reads the future: its output at token 0"),
    "next": (partial(with_mixer, NextOnly), "reads the future"),
    "far future": (partial(with_mixer, FarFuture), "reads the future"),
    "beyond its mask": (partial(with_mixer, BeyondMask), r"reads the future.*its mask excludes"),
    "documents": (partial(with_mixer, Documents), "reads other documents"),
    "padding": (partial(with_mixer, Padding), "reads padding"),
    "NaN at padding": (partial(with_mixer, Spreading), "NaN or inf at padding, which spreads"),
    "shape": (partial(with_mixer, Transposed), r"returns the shape \[1, 1, 32\] for an input of"),
    "dtype": (partial(with_mixer, Wide), r"returns torch\.float64 for an input of torch\.float32"),
    "float32": (partial(with_mixer, Promoting), r"returns torch\.float32 .* torch\.bfloat16"),
    "bfloat16": (partial(with_mixer, NotNarrow), r"fails on a small batch in torch\.bfloat16: "
                 r"RuntimeError in custom_modules\.py:\d+"),
    "in place": (partial(with_mixer, InPlace), "changes its input in place"),
    "random": (partial(with_mixer, Random), "draws random numbers"),
    "state": (partial(with_mixer, Remembering), "keeps state between calls"),
    "rows": (partial(with_mixer, AcrossRows), "mixes the rows of a batch"),
    "several rows": (partial(with_mixer, PlainPositions), "fails on a small batch of padded rows: "
                     r"AssertionError in custom_modules\.py:\d+: one row"),
    "tensor": (partial(with_mixer, OutsideTensor), "keeps a tensor in scale, outside"),
    "modules": (partial(with_mixer, ListedModules), r"keeps modules in others, a list.*ModuleList"),
    "lost zeros": (partial(with_mixer, LostZeros), r"fills out\.weight in its constructor"),
    "lost normal": (partial(with_mixer, LostNormal), r"fills value\.weight in its constructor"),
    "lost resets": (partial(with_mixer, LostResets), r"fills value\.weight in reset_parameters"),
    "unfilled": (partial(with_mixer, HalfFilled), "leaves rate without values"),
    "declaration": (partial(with_mixer, Misdeclared), r"READS=\['tomorrow'\]: declare some of"),
    "mlp": (partial(with_part, "mlp", ShiftingMLP, hidden_dim=32), "reads other tokens"),
    "norm": (partial(with_part, "mlp_norm", BatchNorm, hidden_dim=32), "reads other tokens"),
    "training": (partial(with_mixer, TrainingFuture), "reads in training what it may not: its"),
    "statistics": (partial(with_part, "mlp_norm", BatchStatistics, hidden_dim=32),
                   r"reads in training what it may not(.|\n)*changes its buffer norm.running_mean"),
    "count": (partial(with_mixer, Annealing), "training that a resumed run would not"),
    "generator": (partial(with_mixer, OwnGenerator), "training that a resumed run would not"),
    "Python": (partial(with_mixer, PythonNumbers), "training that a resumed run would not"),
    "numpy": (partial(with_mixer, NumpyNumbers), "training that a resumed run would not"),
    "buffer": (partial(with_mixer, LostCount), "changes its buffer count in training.*bfloat16"),
    "kernel": (partial(with_attention, "kernel", leaky_kernel), "reads the future"),
    "block": (partial(with_block, LeakyBlock), "reads the future"),
    "embedding": (partial(with_callable, "model.embedding", LeakyEmbedding), "reads the future"),
    "model": (partial(with_callable, "model", LeakyModel), "reads the future"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "message"), WRONG_MODULES.values(), ids=WRONG_MODULES)
def test_a_wrong_module_is_named_with_its_file_and_line(make, message):
    with pytest.raises(train.ComponentError, match=message) as caught:
        check(make())
    assert re.match(
        r"(blocks\.0(\.\w+)?|embedding|model) \((Attention with )?\w+, tests/"
        r"custom_modules\.py:\d+\) ",
        str(caught.value),
    )


RIGHT_MODULES: dict[str, Callable[[], fdl.Config]] = {
    **{
        kind.__name__: partial(with_mixer, kind)
        for kind in (Uniform, Encoder, PrefixMixer, WindowMixer, Recurrent, Convolution, Spectral,
                     Sparse, TrainOnly, SharedWeights, ZeroStart, KeptCount,
                     PassesOn)
    },
    "MLP": partial(with_part, "mlp", GatedUnit, hidden_dim=32),
    "token shift": partial(with_part, "mlp", TokenShift, hidden_dim=32),
    "norm": partial(with_part, "mlp_norm", MaxNorm),
    "block": partial(with_block, OwnBlock),
    "hash embedding": partial(with_callable, "model.embedding", HashEmbedding),
    "mask": partial(with_attention, "mask", own_mask),
    "prefix": partial(with_attention, "mask", fdl.Config(model.Prefix, 3)),
}  # fmt: skip


@pytest.mark.parametrize("make", RIGHT_MODULES.values(), ids=RIGHT_MODULES)
def test_a_right_module_passes_in_silence(make, capfd):
    check(make())
    assert capfd.readouterr().err == ""


NEEDS_OTHERS = "computes something else if processes share rows .context=2.: its output at token "


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (RIGHT_MODULES["Uniform"], None),
        (RIGHT_MODULES["WindowMixer"], None),
        (RIGHT_MODULES["mask"], None),
        (RIGHT_MODULES["block"], None),
        (RIGHT_MODULES["MLP"], None),
        (RIGHT_MODULES["Recurrent"], NEEDS_OTHERS),
        (RIGHT_MODULES["token shift"], NEEDS_OTHERS),
        (RIGHT_MODULES["hash embedding"], NEEDS_OTHERS),
        (RIGHT_MODULES["Convolution"], "cannot share rows with other processes .context=2."),
    ],
)
def test_what_looks_at_tokens_of_other_processes_is_refused(make, message):
    cfg = make()
    fiddlers.use_mesh(cfg, context=2)
    with pytest.raises(train.ComponentError, match=message) if message else nullcontext():
        check(cfg)


def unused_mixer() -> fdl.Config:
    return with_mixer(Unused)


def test_a_parameter_without_a_gradient_is_named(capfd):
    check(unused_mixer())
    line = capfd.readouterr().err
    assert re.match(
        r"warning: blocks\.0\.attention \(Unused, tests/custom_modules\.py:\d+\) has "
        r"parameters that get no gradient: blocks\.0\.attention\.spare\.weight\. ",
        line,
    )
    assert line.count("\n") == 1  # though two layers have it
    check(unused_mixer(), trainable=lambda name, parameter: "spare" not in name)
    assert capfd.readouterr().err == ""


class OwnModel(model.LanguageModel):
    READS = ("padding", "documents")

    def __init__(self, *, vocab_size: int, width: int, has_spare: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, width)
        self.layers = nn.GRU(width, width, batch_first=True)
        self.unembedding = nn.Linear(width, vocab_size)
        self.spare = nn.Linear(width, 1) if has_spare else None

    def features(self, tokens, ctx=None):
        return self.layers(self.table(tokens))[0]


def test_a_model_of_ones_own_is_tried_with_its_unembedding(capfd):
    cfg = configs.debug()
    model: Any = fdl.Config(OwnModel, vocab_size=257, width=8)
    cfg.model = model
    check(cfg)
    assert capfd.readouterr().err == ""
    trainer = build_trainer(cfg)
    trainer.parallel.world_size = 2
    preflight.check_components(trainer)
    model.has_spare = True
    check(cfg)
    assert "get no gradient: spare.weight, spare.bias. " in capfd.readouterr().err


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Unused, "DistributedDataParallel needs a gradient"),
        (KeptCount, "changes its buffer count in training, by the rows of its own process"),
    ],
)
def test_on_several_processes_it_is_an_error(kind, message):
    trainer = build_trainer(with_mixer(kind))
    trainer.parallel.world_size = 2
    with pytest.raises(train.ComponentError, match=message):
        preflight.check_components(trainer)


@pytest.mark.slow
def test_all_that_is_wrong_is_listed_at_once():
    with pytest.raises(train.ComponentError) as caught:
        check(with_mixer(OutsideTensor))
    assert len(str(caught.value).splitlines()) == 1  # of two layers
    cfg = with_mixer(Future)
    cfg.model.blocks[0].mlp = fdl.ArgFactory(ShiftingMLP, hidden_dim=32)
    with pytest.raises(train.ComponentError) as caught:
        check(cfg, trackers=[HalfTracker()])
    assert len(str(caught.value).splitlines()) == 3


def test_a_module_that_is_too_large_is_left_out_with_a_warning(monkeypatch, capfd):
    monkeypatch.setattr(module_trials, "LARGEST", 100)
    check(with_mixer(Future))
    assert "(Future, tests/" in capfd.readouterr().err


@pytest.mark.slow
def test_layers_of_one_kind_are_tried_once(monkeypatch):
    cfg, calls = with_mixer(Counting), []
    monkeypatch.setattr(Counting, "calls", calls)
    cfg.model.num_layers = 2
    check(cfg)
    few = len(calls)
    calls.clear()
    cfg.model.num_layers = 40
    trainer = build_trainer(cfg)
    calls.clear()
    preflight.check_components(trainer)
    assert 0 < len(calls) <= few


# Optimizers.


class Descent(torch.optim.Optimizer):
    """Gradient descent as it should be."""

    def __init__(self, params: Any, *, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.move(parameter, group)

    def move(self, parameter: Any, group: dict[str, Any]) -> None:
        parameter -= group["lr"] * parameter.grad


class NoRate(Descent):
    def __init__(self, params: Any, *, rate: float = 0.1) -> None:
        torch.optim.Optimizer.__init__(self, params, {"rate": rate})


class FixedRate(Descent):
    def move(self, parameter: Any, group: dict[str, Any]) -> None:
        parameter -= 0.1 * parameter.grad


class Still(Descent):
    def move(self, parameter: Any, group: dict[str, Any]) -> None:
        parameter = parameter - group["lr"] * parameter.grad


class OnlyMatrices(Descent):
    def move(self, parameter: Any, group: dict[str, Any]) -> None:
        parameter -= group["lr"] * parameter.grad @ torch.eye(parameter.shape[1])


class Exploding(Descent):
    def move(self, parameter: Any, group: dict[str, Any]) -> None:
        parameter /= 0 * group["lr"]


class Unsaved(Descent):
    def move(self, parameter: Any, group: dict[str, Any]) -> None:
        super().move(parameter, group)
        self.state[parameter]["history"] = {*range(3)}


class Outside(Descent):
    """Keeps its momentum where no checkpoint has it."""

    def __init__(self, params: Any, *, lr: float = 0.1) -> None:
        super().__init__(params, lr=lr)
        self.means = dict[Any, Any]()

    def move(self, parameter: Any, group: dict[str, Any]) -> None:
        self.means[parameter] = self.means.get(parameter, 0.0) * 0.9 + parameter.grad
        parameter -= group["lr"] * self.means[parameter]


class Inside(Descent):
    def move(self, parameter: Any, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        state["mean"] = state.get("mean", 0.0) * 0.9 + parameter.grad
        parameter -= group["lr"] * state["mean"]


def test_an_optimizer_with_state_of_its_own_passes():
    cfg = configs.debug()
    cfg.optimizer = fdl.Partial(Inside)
    check(cfg)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Outside, "takes another step once its state was saved and restored"),
        (NoRate, r"has a group of parameters without `lr`"),
        (FixedRate, "takes the same step whatever the groups' `lr`"),
        (Still, r"leaves all parameters as they are in 2 steps with lr=0\.1"),
        (OnlyMatrices, "fails in a trial step: the optimizer OnlyMatrices cannot step"),
        (Exploding, "makes parameters NaN or inf"),
        (Unsaved, "cannot be saved: .*history is a set"),
    ],
)
def test_a_wrong_optimizer_is_named(kind, message):
    cfg = configs.debug()
    cfg.optimizer = fdl.Partial(kind)
    where = rf"^optimizer \({kind.__name__}, tests/train/test_preflight\.py:\d+\) "
    with pytest.raises(train.ComponentError, match=where + message):
        check(cfg)


@pytest.mark.slow
def test_a_right_optimizer_passes_and_the_run_is_as_without_the_check(train, monkeypatch):
    cfg = configs.debug()
    cfg.optimizer = fdl.Partial(Descent)
    cfg.model.blocks[0].attention = fdl.ArgFactory(TrainOnly, hidden_dim=32)
    checked = [row["loss"] for row in train(cfg, "checked")]
    monkeypatch.setattr(preflight, "check_components", lambda run: None)
    monkeypatch.setattr(preflight, "check_streams", lambda run: None)
    assert [row["loss"] for row in train(cfg, "unchecked")] == checked


def some_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Forget the norms."""
    return [{"params": [p for name, p in model.named_parameters() if "norm" not in name]}]


def test_groups_that_leave_out_trained_parameters_are_named():
    cfg = configs.debug()
    cfg.groups = some_groups
    message = r"^groups \(some_groups, tests/.*:\d+\) lists 5 trained parameters not once"
    with pytest.raises(train.ComponentError, match=message):
        check(cfg)
    check(cfg, trainable=lambda name, parameter: "norm" not in name)


def unordered_groups(model: nn.Module) -> list[dict[str, Any]]:
    return [{"params": [*set(model.parameters())]}]


def test_groups_that_list_parameters_in_any_order_are_named():
    cfg = configs.debug()
    cfg.model.num_layers = 8
    cfg.groups = unordered_groups
    with pytest.raises(train.ComponentError, match="in another order when it is called again"):
        check(cfg)


# What judges a step.


class Patient:
    """Counts steps, and saves the count."""

    count = 0

    def __call__(self, *, loss: float, grad_norm: float) -> train.Decision:
        self.count += 1
        return train.Decision.APPLY

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.count = state["count"]


class Bare:
    seen = 0

    def __call__(self, *, loss: float, grad_norm: float) -> bool:
        self.seen += 1
        return True


def test_what_judges_steps_is_tried(capfd):
    check(configs.debug(), guard=Patient())
    assert capfd.readouterr().err == ""
    for changes, message in (
        ({"guard": Bare()}, r"guard \(Bare, .*\) returns True: it decides by one of (.|\n)*"
         r"guard \(Bare, .*\) keeps state between steps"),
        ({"guard": lambda *, loss: None}, "guard .* fails for a step with finite numbers: TypeE"),
    ):  # fmt: skip
        with pytest.raises(train.ComponentError, match=message):
            check(configs.debug(), **changes)


# Terms of the loss.


class MeanSquare:
    def __call__(self, rows: Any, probabilities: Any, gradients: Any) -> Any:
        gradients += 2 * rows.logits / rows.vocab_size
        return rows.logits.square().mean(-1)


class HalfDerivative(MeanSquare):
    def __call__(self, rows: Any, probabilities: Any, gradients: Any) -> Any:
        gradients += rows.logits / rows.vocab_size
        return rows.logits.square().mean(-1)


class OneNumber(MeanSquare):
    def __call__(self, rows: Any, probabilities: Any, gradients: Any) -> Any:
        return super().__call__(rows, probabilities, gradients).mean()


class Scaling(MeanSquare):
    def __call__(self, rows: Any, probabilities: Any, gradients: Any) -> Any:
        rows.logits.mul_(0.5)
        return super().__call__(rows, probabilities, gradients)


def test_terms_of_the_loss_are_tried(capfd):
    check(configs.debug(), loss=train.CrossEntropy(terms={"mine": MeanSquare()}))
    assert capfd.readouterr().err == ""
    check(configs.debug(), loss=train.CrossEntropy(terms={"mine": HalfDerivative()}))
    assert re.match(
        r"warning: loss\.terms\['mine'\] \(HalfDerivative, .*:\d+\) adds derivatives that are not",
        capfd.readouterr().err,
    )
    for kind, message in (
        (OneNumber, r"returns \[\] for 4 rows"),
        (Scaling, "changes the logits in place"),
        (partial(partial, OneNumber), "fails on a small batch: TypeError"),
    ):
        with pytest.raises(train.ComponentError, match=message):
            check(configs.debug(), loss=train.CrossEntropy(terms={"mine": kind()}))


# Trackers, evaluators, observers and schedules.


class HalfTracker:
    def start(self, run: Any, facts: Any, *, step: int) -> None: ...
    def log(self, row: Any, more: Any) -> None: ...
    def print(self, text: str) -> None: ...


class HalfEvaluator:
    def prepare(self, *, show_progress: bool = True) -> None: ...
    def due(self, step: int) -> bool:
        return False


class HalfObserver:
    def observing(self, run: Any, parallel: Any) -> Any: ...


def test_methods_that_are_missing_are_listed():
    for name, value, message in (
        ("trackers", [HalfTracker()], r"^trackers\[0\] \(HalfTracker, .*:\d+\) is not a Tracker: "
         r"log\(row\) cannot be called, since log\(row: Any, more: Any\) -> None is defined: "
         r"missing a required argument: 'more'; it has no method finish\(\)\."),
        ("evaluators", {"mine": HalfEvaluator()}, r"^evaluators\['mine'\] \(HalfEvaluator, .*"
         r"due\(step, \*, num_steps\) cannot be called.*; it has no method __call__\(model, loss"),
        ("observers", [HalfObserver()], r"HalfObserver, .*it has no method stepping\(step\)"),
    ):  # fmt: skip
        with pytest.raises(train.ComponentError, match=message):
            check(configs.debug(), **{name: value})


@pytest.mark.parametrize("value", [-0.5, float("nan"), None, "1.0", torch.ones(())])
def test_a_schedule_that_is_no_multiplier_is_named(value):
    with pytest.raises(train.ComponentError, match=r"^schedule \(<lambda>, .*:\d+\) is .* at step"):
        check(configs.debug(), schedule=lambda step: value)


def test_a_schedule_that_fails_is_named():
    message = r"^schedules\['weight_decay'\] .* at step 9: IndexError in test_preflight\.py:\d+"
    cfg = configs.debug()
    cfg.num_steps = 10
    with pytest.raises(train.ComponentError, match=message):
        check(cfg, schedules={"weight_decay": lambda step: [1.0, *[0.5] * 8][step]})


def test_a_schedule_that_changes_when_asked_again_is_named():
    counted = itertools.count(1)
    message = "is 1.0 at step 0, and 0.25 when asked again"
    with pytest.raises(train.ComponentError, match=message):
        check(configs.debug(), schedule=lambda step: 1 / next(counted))


# Streams.


class Counted(data.TrainingStream):
    """Tokens that count up, as a stream of a user's."""

    def __init__(self, *, batch_size: int = 4, seq_len: int = 32) -> None:
        self.batch_size, self.seq_len = batch_size, seq_len

    def prepare(self, *, show_progress: bool = True) -> None:
        """Do nothing."""

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Any:
        rows = self.batch_size // world_size
        count = torch.arange(rows * (self.seq_len + 1)).view(rows, -1)
        return data.Batch((count + step + rank) % 100)

    @property
    def tokenizer(self) -> Any:
        raise NotImplementedError

    @property
    def checksum(self) -> str:
        return "counted"


def unchecked(tokens: Tensor) -> data.Batch:
    """A batch without the checks of types that only tests make."""
    batch = object.__new__(data.Batch)
    vars(batch).update(tokens=tokens, counted=None)
    return batch


class Narrow(Counted):
    def batch(self, step: int, **options: Any) -> Any:
        return unchecked(super().batch(step, **options).tokens.int())


class Plain(Counted):
    def batch(self, step: int, **options: Any) -> Any:
        return super().batch(step, **options).tokens


class Short(Counted):
    def batch(self, step: int, **options: Any) -> Any:
        return super().batch(step, **options).map(lambda rows: rows[:, :-1])


class Flat(Counted):
    def batch(self, step: int, **options: Any) -> Any:
        return unchecked(super().batch(step, **options).tokens.flatten())


class AllRows(Counted):
    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Any:
        return super().batch(step)


class TooLarge(Counted):
    def batch(self, step: int, **options: Any) -> Any:
        return super().batch(step, **options).map(lambda rows: rows + 1000)


class Drawing(Counted):
    """Goes on where it was at the last call."""

    count = 0

    def batch(self, step: int, **options: Any) -> Any:
        self.count += 1
        return super().batch(self.count, **options)


class Overwriting(Counted):
    """Returns one tensor again and again, which its constructor makes."""

    def __init__(self, *, batch_size: int = 4, seq_len: int = 32) -> None:
        super().__init__(batch_size=batch_size, seq_len=seq_len)
        self.rows = torch.zeros(batch_size, seq_len + 1, dtype=torch.int64)

    def batch(self, step: int, **options: Any) -> Any:
        return data.Batch(self.rows.copy_(super().batch(step, **options).tokens))


class SameRows(Counted):
    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Any:
        return super().batch(step, world_size=world_size)


class SameBatch(Counted):
    def batch(self, step: int, **options: Any) -> Any:
        return super().batch(0, **options)


class Masked(Counted):
    """Masks tokens out of the loss, and raises before it is prepared."""

    def batch(self, step: int, **options: Any) -> Any:
        tokens = super().batch(step, **options).tokens
        return data.Batch(tokens, tokens % 2 == 1)


def with_stream(stream: Any, **changes: Any) -> train.Trainer:
    trainer = build_trainer(configs.debug())
    for name, value in {"stream": stream, "batch_size": 4, "seq_len": 32, **changes}.items():
        setattr(trainer, name, value)
    return trainer


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Narrow, r"returns a Batch of torch\.int32: return data\.Batch\(tokens, counted\)"),
        (Plain, "returns a Tensor: return data"),
        (Short, r"returns a batch of the shape \[4, 32\], and the run needs \[4, 33\]"),
        (Flat, r"returns a batch of the shape \[132\], and the run needs \[4, 33\]"),
        (TooLarge, r"returns the token 1\d\d\d, and the model has vocab_size=257"),
        (Drawing, "returns two batches for one step"),
        (Overwriting, "writes the next batch over the last one"),
    ],
)
def test_a_wrong_stream_is_named(kind, message):
    where = rf"^data \({kind.__name__}, tests/train/test_preflight\.py:\d+\) "
    with pytest.raises(train.ComponentError, match=where + message):
        preflight.check_streams(with_stream(kind()))


def test_rows_are_those_of_the_process():
    trainer = with_stream(AllRows())
    trainer.parallel.places = replace(ALONE, mesh=Mesh(replicate=2))
    with pytest.raises(train.ComponentError, match=r"needs \[2, 33\]: batch_size=4 over 2 proc"):
        preflight.check_streams(trainer)
    trainer.stream = SameRows()
    with pytest.raises(train.ComponentError, match="returns the same rows to two processes"):
        preflight.check_streams(trainer)
    trainer.stream = Counted()
    preflight.check_streams(trainer)


def test_a_stream_that_ignores_the_step_is_named(capfd):
    preflight.check_streams(with_stream(SameBatch()))
    assert "(SameBatch, tests/" in (err := capfd.readouterr().err)
    assert "returns the same batch at steps 0 and 1." in err


def test_a_stream_may_make_tensors_in_its_constructor():
    cfg = configs.debug()
    cfg.data = fdl.Config(Overwriting, batch_size=4)
    assert build_trainer(cfg).stream.batch(3).tokens.equal(Counted().batch(3).tokens)


class Unready(Counted):
    def batch(self, step: int, **options: Any) -> Any:
        raise data.DataError("call prepare() first")


def test_right_streams_pass():
    preflight.check_streams(with_stream(Counted()))
    preflight.check_streams(with_stream(Masked()))
    preflight.check_streams(with_stream(data.Prefetch(Counted()), seq_len=32))
    preflight.check_streams(with_stream(Unready()), prepared=False)
    with pytest.raises(data.DataError, match="call prepare"):
        preflight.check_streams(with_stream(Unready()))


def test_the_stream_of_an_evaluator_is_checked():
    class Evaluated(data.HeldOut):
        def batch(self, number: int, *, rank: int = 0, world_size: int = 1) -> Any:
            return data.Batch(torch.full((2, 9), 300))

    trainer = with_stream(Counted())
    trainer.evaluators = {
        "own": train.Validation(Evaluated(data.Corpus, seq_len=8, batch_size=2), every=None)  # pyright: ignore
    }
    with pytest.raises(train.ComponentError, match=r"^evaluators\['own'\]\.data \(Evaluated"):
        preflight.check_streams(trainer)


@pytest.mark.slow
def test_fidgpts_own_components_are_not_tried(monkeypatch):
    def fail(*args: object) -> None:
        raise AssertionError("tried")

    monkeypatch.setattr(module_trials, "Trial", fail)
    monkeypatch.setattr(preflight, "_trial_steps", fail)
    monkeypatch.setattr(preflight, "_stream_errors", fail)
    for name in ("debug", "gpt2_124m"):
        trainer = build_trainer(getattr(configs, name)())
        preflight.check_components(trainer)
        preflight.check_streams(trainer)


def test_the_attention_of_the_documentation_is_right(monkeypatch, tmp_path):
    page = Path(__file__).parents[2] / "docs" / "models.md"
    (source,) = re.findall(r"```python\n(# lab/mixing.py\n.*?)```", page.read_text(), re.DOTALL)
    (tmp_path / "mixing_of_docs.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    import mixing_of_docs  # pyright: ignore[reportMissingImports]

    check(with_mixer(mixing_of_docs.MovingAverage))
