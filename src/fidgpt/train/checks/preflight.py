"""Checks of a run's custom components before its first step: that they keep what they promise.

Components of fidgpt and of torch are tested by their own suites and cost nothing here. Modules are
tried on copies, and optimizers on a stand-in for the model, so that no number of the run changes.
"""

import copy
import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fidgpt.data import EvaluationStream, TrainingStream
from fidgpt.data.streams import rows_of_rank
from fidgpt.placement import held
from fidgpt.train.averaging import EvaluationWeights
from fidgpt.train.checkpoints.manifest import CheckpointError
from fidgpt.train.checkpoints.tensors import load_optimizer, optimizer_parts
from fidgpt.train.checks.module_trials import model_errors
from fidgpt.train.custom import custom_class, custom_part, describe, failure
from fidgpt.train.device import seed_torch
from fidgpt.train.divergence import Decision, Divergence, Guard
from fidgpt.train.estimates.facts import Recipe, trainable_copy
from fidgpt.train.evaluation import Evaluator
from fidgpt.train.loss import LogitRows, LossTerm
from fidgpt.train.observers import Observer
from fidgpt.train.optimizer_groups import make_optimizer, peak_rate, step_optimizer
from fidgpt.train.run_directory import RunError, print_stderr
from fidgpt.train.state import Stateful
from fidgpt.train.trackers.trackers import Tracker

__all__ = ["ComponentError"]


class ComponentError(RunError):
    """A custom component breaks what its interface promises; the message names it and the remedy.

    Each line gives the path in the model or the run, the class, and its file and line.
    """


@runtime_checkable
class Components(Recipe, Protocol):
    """What is checked; see the attributes of `Trainer`."""

    trackers: Sequence[Tracker]
    observers: Sequence[Observer]
    guard: Guard | None
    divergence: Divergence | None


def check_components(run: Components) -> None:
    """Check everything that needs no data; warn of what may be meant.

    Raises:
      ComponentError: some component breaks a promise; all of them are listed.
    """
    errors = [*_interface_errors(run), *_schedule_errors(run), *_term_errors(run)]
    errors += _state_errors(run)
    with torch.random.fork_rng(devices=[]):
        errors += model_errors(run)
        errors += _group_errors(run)
        errors += _optimizer_errors(run)
    _raise_all(errors)


def check_streams(run: Components, *, prepared: bool = True) -> None:
    """Check the first batches of custom streams.

    Args:
      run: the run.
      prepared: whether the streams are; if not, those that fail without it are left unchecked.

    Raises:
      ComponentError: a batch is not what the run needs.
    """
    errors: list[str] = []
    for path, stream in _streams(run).items():
        if (custom := custom_part(stream)) is not None:
            with_path = functools.partial(describe, path, stream, custom, "batch")
            try:
                found = _stream_errors(run, stream, where=with_path())
                errors += [f"{with_path()} {text}" for text in found]
            except Exception:
                if prepared:
                    raise
    _raise_all(errors)


def _raise_all(errors: Sequence[str]) -> None:
    if errors:
        raise ComponentError("\n".join(dict.fromkeys(errors)))


# Components that are called by their methods: trackers, evaluators, observers, schedules.


def _interface_errors(run: Components) -> Iterator[str]:
    """Yield what lacks methods, or has them with other arguments."""
    listed: list[tuple[str, object, Any]] = [
        *((f"trackers[{i}]", one, Tracker) for i, one in enumerate(run.trackers)),
        *((f"observers[{i}]", one, Observer) for i, one in enumerate(run.observers)),
        *((f"evaluators[{name!r}]", one, Evaluator) for name, one in run.evaluators.items()),
        ("data", run.stream, TrainingStream),
    ]
    for path, part, interface in listed:
        custom = custom_class(type(part))
        if custom is None:
            continue
        methods = {k: v for k, v in vars(interface).items() if inspect.isfunction(v)}
        methods = {k: v for k, v in methods.items() if k == "__call__" or k[0] != "_"}
        lines = [_missing(part, name, method) for name, method in methods.items()]
        if lines := [line for line in lines if line]:
            where = describe(path, part, custom, "__init__")
            yield f"{where} is not a {interface.__name__}: {'; '.join(lines)}."


def _missing(part: object, name: str, method: Callable[..., object]) -> str:
    """Return how a method of an interface is missing; "" if it can be called as promised."""
    promised = inspect.signature(method)
    plain = [one.replace(annotation=one.empty) for one in promised.parameters.values()][1:]
    call = f"{name}{inspect.Signature(plain)}".replace(", /", "")
    own = getattr(part, name, None)
    if not callable(own):
        return f"it has no method {call}"
    try:
        signature = inspect.signature(own)
    except ValueError:  # it has none
        return ""
    try:
        by_name = {one.name: None for one in plain if one.kind is one.KEYWORD_ONLY}
        signature.bind(*(None for one in plain if one.name not in by_name), **by_name)
    except TypeError as error:
        return f"{call} cannot be called, since {name}{signature} is defined: {error}"
    return ""


def _schedule_errors(run: Components) -> Iterator[str]:
    """Yield custom schedules whose multipliers are no numbers, or change when asked again."""
    named = {"schedule": run.schedule}
    named |= {f"schedules[{name!r}]": one for name, one in (run.schedules or {}).items()}
    for path, schedule in named.items():
        if (custom := custom_part(schedule)) is None:
            continue
        where = describe(path, schedule, custom, "__call__")
        first: dict[int, Any] = {}
        for step in (0, run.num_steps // 2, run.num_steps - 1, 0):
            try:
                value: Any = schedule(step)
            except Exception as error:
                yield f"{where} fails at step {step}: {failure(error)}"
                break
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 <= value < float("inf"):
                yield (
                    f"{where} is {value!r} at step {step}: a schedule returns the multiplier of "
                    "the peak value, a finite float of at least 0."
                )
                break
            if value != first.setdefault(step, value):
                yield (
                    f"{where} is {first[step]!r} at step {step}, and {value!r} when asked again: a "
                    "schedule is a function of the step, so that a resumed run goes on alike."
                )


# What judges a step.


def _state_errors(run: Components) -> Iterator[str]:
    """Yield a custom guard or policy for divergence whose state is in no checkpoint."""
    calls = {
        "guard": (run.guard, [{"loss": float(loss), "grad_norm": 1.0} for loss in (2, 3, 1)]),
        "divergence": (run.divergence, [{"is_finite": True}] * 3),
    }
    for path, (part, arguments) in calls.items():
        if (custom := custom_part(part)) is None:
            continue
        where = describe(path, part, custom, "__call__")
        try:
            tried = copy.deepcopy(part)
        except Exception:  # what cannot be copied cannot be tried without leaving traces
            continue
        before = repr(getattr(tried, "__dict__", 0))
        try:
            decisions = [tried(**one) for one in arguments]
        except Exception as error:
            yield f"{where} fails for a step with finite numbers: {failure(error)}"
            continue
        if wrong := [one for one in decisions if not isinstance(one, Decision)]:
            yield f"{where} returns {wrong[0]!r}: it decides by one of fidgpt.train.Decision."
        changed = repr(getattr(tried, "__dict__", 0)) != before
        if changed and not isinstance(part, Stateful):
            yield (
                f"{where} keeps state between steps, which no checkpoint holds: give it the "
                "methods state_dict() and load_state_dict(state)."
            )


# Terms of the loss.

_SHIFT, _ERROR = 1e-2, 0.05  # of logits, and of derivatives by differences


def _term_errors(run: Components) -> Iterator[str]:
    """Yield custom terms of the loss that do not return what `LossTerm` promises."""
    for name, term in (getattr(run.loss, "terms", None) or {}).items():
        if (custom := custom_part(term)) is not None:
            where = describe(f"loss.terms[{name!r}]", term, custom, "__call__")
            try:
                yield from (f"{where} {text}" for text in _term_mistakes(term, where))
            except Exception as error:
                yield f"{where} fails on a small batch: {failure(error)}"


def _term_mistakes(term: LossTerm, where: str) -> Iterator[str]:
    """Yield what a term does wrong; warn of derivatives that differences of values do not have."""
    generator = torch.Generator().manual_seed(0)
    logits, direction = torch.randn(2, 4, 9, generator=generator)
    targets = torch.tensor([0, 3, 8, 3])

    def call(logits: Tensor) -> tuple[Any, Tensor, list[Tensor]]:
        given = [logits.clone(), logits.softmax(-1)]
        gradients = torch.zeros_like(logits)
        value = term(LogitRows(given[0], targets), given[1].clone(), gradients)
        return value, gradients, given

    value, gradients, (seen, _) = call(logits)
    if not isinstance(value, Tensor) or value.shape != targets.shape:
        shape = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        yield f"returns {shape} for {len(targets)} rows: a term returns one number for each row."
    elif not torch.equal(seen, logits):
        yield "changes the logits in place, which other terms read too: copy them first."
    else:
        ahead, behind = (call(logits + sign * _SHIFT * direction)[0] for sign in (1, -1))
        numeric = (ahead - behind).double() / (2 * _SHIFT)
        added = (gradients * direction).sum(-1)
        errors, scale = (numeric - added).abs(), torch.stack([numeric, added.double()]).abs().max()
        if errors.max() > _ERROR * scale:
            row = int(errors.argmax())
            print_stderr(
                f"warning: {where} adds derivatives that are not those of its values: along a line "
                f"{added[row]:.3g}, where differences of values are {numeric[row]:.3g}. It should "
                "add the derivative of each row's term by its logits to `gradients`."
            )


# Optimizers.

_TINY = 4  # the largest dimension of a parameter of the stand-in
_SCALE = 3.0  # of the learning rate in a second trial
_STEPS = 2


class _StandIn(nn.Module):
    """Tiny parameters with as many dimensions as those of a model."""

    def __init__(self, parameters: Iterable[Tensor], *, device: torch.device) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        values = [
            torch.randn([min(size, _TINY) for size in one.shape], generator=generator)
            for one in parameters
        ]
        self.tiny = nn.ParameterList([nn.Parameter(one.to(device)) for one in values])


def _group_errors(run: Components) -> Iterator[str]:
    """Yield the trained parameters that custom groups leave out, or have twice."""
    if (custom := custom_part(run.groups)) is None:
        return
    lists, names = list[list[str]](), dict[int, str]()
    for _ in range(2):
        model = trainable_copy(run.model, run.trainable)
        names = {id(one): name for name, one in model.named_parameters() if one.requires_grad}
        params = [id(one) for group in run.groups(model) for one in group["params"]]
        lists.append([names[one] for one in params if one in names])
    where, counts = describe("groups", run.groups, custom, "__call__"), Counter(lists[0])
    wrong = [name for name in names.values() if counts[name] != 1]
    if wrong:
        yield (
            f"{where} lists {len(wrong)} trained parameters not once, the first is {wrong[0]}, "
            f"{counts[wrong[0]]} times: each belongs to one group. Freeze what should not be "
            "trained."
        )
    elif lists[0] != lists[1]:
        yield (
            f"{where} lists parameters in another order when it is called again, and a checkpoint "
            "restores their state by the order: list them as model.named_parameters() does, "
            "without a set."
        )


def _optimizer_errors(run: Components) -> Iterator[str]:
    """Yield what a custom optimizer does wrong on a stand-in for the model."""
    custom = custom_part(run.optimizer)
    if custom is None:
        return
    kind: Any = run.optimizer
    while isinstance(kind, functools.partial):
        kind = kind.func
    where = describe("optimizer", kind, custom, "step")
    try:
        yield from (f"{where} {text}" for text in _trial_steps(run))
    except RunError as error:
        yield f"{where} fails in a trial step: {error}"


def _trial_steps(run: Components) -> Iterator[str]:
    """Yield what is wrong with the steps of an optimizer, on parameters as they will be sharded."""
    model = trainable_copy(run.model, run.trainable)
    groups = run.groups(model)
    first, optimizer = _stand_in(run, groups)
    second, scaled = _stand_in(run, groups)
    for group in optimizer.param_groups:
        if "lr" not in group:
            yield (
                "has a group of parameters without `lr`, which the schedule sets at each step: "
                "pass defaults={'lr': lr, ...} to torch.optim.Optimizer, and read group['lr'] in "
                "step()."
            )
            return
    rates = [peak_rate(group) for group in optimizer.param_groups]
    before = _values(first)
    for _ in range(_STEPS):
        for stand_in, one, scale in ((first, optimizer, 1.0), (second, scaled, _SCALE)):
            for group, rate in zip(one.param_groups, rates, strict=True):
                group["lr"] = rate * scale
            for parameter in stand_in.parameters():
                parameter.grad = parameter.detach() * 0.5 + 0.1
            step_optimizer(one)
    after, others = _values(first), _values(second)
    if any(not one.isfinite().all() for one in after):
        yield f"makes parameters NaN or inf in {_STEPS} steps."
    elif any(rates) and not any(map(_differ, before, after)):
        yield f"leaves all parameters as they are in {_STEPS} steps with lr={max(rates)}."
    elif any(rates) and not any(map(_differ, after, others)):
        yield (
            "takes the same step whatever the groups' `lr`, which the schedule sets: read "
            "group['lr'] in step()."
        )
    if isinstance(optimizer, EvaluationWeights):
        for _ in range(2):
            optimizer.swap_weights()
        if any(map(_differ, after, _values(first))):
            yield "changes the trained weights where swap_weights() is called twice."
    try:
        is_restored = _goes_on_restored(run, groups, first, optimizer)
    except CheckpointError as error:
        yield f"cannot be saved: {error}"
    else:
        if not is_restored:
            yield (
                "takes another step once its state was saved and restored, as in a run that is "
                "resumed: keep state in self.state[parameter] or in its groups, not in attributes."
            )


def _goes_on_restored(
    run: Components, groups: Sequence[Mapping[str, Any]], model: nn.Module, optimizer: Optimizer
) -> bool:
    """Return whether an optimizer with the saved state and weights takes the same step.

    Raises:
      CheckpointError: its state cannot be saved or restored.
    """
    pairs = [(model, optimizer), _stand_in(run, groups)]
    (_, own), (copied, restored) = pairs
    swapping = [one for one in (own, restored) if isinstance(one, EvaluationWeights)]
    if isinstance(own, EvaluationWeights):
        own.swap_weights()  # checkpoints hold the weights to evaluate
    saved, state = optimizer_parts(own, model)
    load_optimizer(saved, {name: one.clone() for name, one in state.items()}, restored)
    with torch.no_grad():
        for old, new in zip(model.parameters(), copied.parameters(), strict=True):
            held(new).copy_(held(old))
    for one in swapping:
        one.swap_weights()
    for stand_in, one in pairs:
        for parameter in stand_in.parameters():
            parameter.grad = parameter.detach() * 0.5 + 0.1
        seed_torch(0, device=run.parallel.device)
        step_optimizer(one)
    return all(map(torch.equal, *(_values(stand_in) for stand_in, _ in pairs)))


def _stand_in(run: Components, groups: Sequence[Mapping[str, Any]]) -> tuple[nn.Module, Optimizer]:
    """Return tiny parameters, sharded as the model's will be, and their optimizer."""
    stand_in = _StandIn((p for g in groups for p in g["params"]), device=run.parallel.device)
    run.parallel.shard(stand_in, run.precision)
    tiny = iter(stand_in.parameters())
    own = [{**group, "params": [next(tiny) for _ in group["params"]]} for group in groups]
    return stand_in, make_optimizer(run.optimizer, own, parallel=run.parallel)


def _values(module: nn.Module) -> list[Tensor]:
    """Return copies of this process's part of the parameters."""
    return [held(one).detach().clone() for one in module.parameters()]


def _differ(one: Tensor, other: Tensor) -> bool:
    return not torch.equal(one, other)


# Streams.


def _streams(run: Components) -> dict[str, TrainingStream | EvaluationStream]:
    """Return the streams of a run by path."""
    found: dict[str, TrainingStream | EvaluationStream] = {"data": run.stream}
    for name, evaluator in run.evaluators.items():
        if isinstance(data := getattr(evaluator, "data", None), EvaluationStream):
            found[f"evaluators[{name!r}].data"] = data
    return found


def _stream_errors(
    run: Components, stream: TrainingStream | EvaluationStream, *, where: str
) -> Iterator[str]:
    """Yield what is wrong with the first batches of this process."""
    rank, world_size = run.parallel.data_rank, run.parallel.data_size
    is_training = isinstance(stream, TrainingStream)
    batch = stream.batch(0, rank=rank, world_size=world_size)
    if not isinstance(batch, Tensor) or batch.dtype != torch.int64:
        kind = str(batch.dtype) if isinstance(batch, Tensor) else type(batch).__name__
        yield f"returns batches of {kind}: token ids are a tensor of torch.int64."
        return
    rows = len(rows_of_rank(run.batch_size, rank=rank, world_size=world_size))
    window = run.seq_len + 1
    may_be_shorter = is_training and run.seq_len_growth is not None
    may_be_smaller = not is_training or run.batch_growth is not None
    fits = batch.dim() == 2
    fits = fits and (batch.shape[0] == rows or may_be_smaller)
    fits = fits and (batch.shape[1] == window or (may_be_shorter and batch.shape[1] <= window))
    if not fits:
        expected = f"[{'rows' if may_be_smaller else rows}, {window}]"
        yield (
            f"returns a batch of the shape {list(batch.shape)}, and the run needs {expected}: "
            f"batch_size={run.batch_size} over {world_size} process{'es' * (world_size > 1)}, and "
            f"seq_len + 1 = {window} tokens, of which the last is only predicted."
        )
        return
    tokens = batch ^ (batch >> 63)  # those masked out of the loss are negative
    if batch.numel() and int(tokens.max()) >= run.vocab_size:
        yield (
            f"returns the token {int(tokens.max())}, and the model has vocab_size="
            f"{run.vocab_size}: tokens are from 0 to {run.vocab_size - 1}."
        )
    first = batch.clone()
    if is_training:
        following = stream.batch(1, rank=rank, world_size=world_size).clone()
        if not torch.equal(first, batch):
            yield (
                "writes the next batch over the last one, which may still be in use: return a new "
                "tensor."
            )
        elif run.num_steps > 1 and len(first) and torch.equal(first, following):
            print_stderr(f"warning: {where} returns the same batch at steps 0 and 1.")
        if world_size > 1 and len(first):
            other = stream.batch(0, rank=(rank + 1) % world_size, world_size=world_size)
            if torch.equal(first, other):
                yield (
                    "returns the same rows to two processes: each of them computes its own part of "
                    "the batch, by `rank`."
                )
    if not torch.equal(first, stream.batch(0, rank=rank, world_size=world_size)):
        yield (
            "returns two batches for one step: a batch is a function of its step alone, so that a "
            "resumed run goes on with the next one. Derive random numbers from the step."
        )
