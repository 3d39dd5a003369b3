"""Trials of a model's custom modules: what they return and read, and what they lose.

Each is tried on a copy with memory, by small batches, so that no number of the run changes.
"""

import copy
import functools
import inspect
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fidgpt.cost import without_memory
from fidgpt.model.blocks import Block
from fidgpt.model.context import AttentionContext, PackedDocuments, padded
from fidgpt.model.masks import causal
from fidgpt.model.materialization import InitError, materialize
from fidgpt.model.reports import collecting
from fidgpt.model.transformer import LanguageModel, Transformer
from fidgpt.train.checks.rehearsal import first_difference
from fidgpt.train.custom import INTERNAL, custom_class, custom_part, describe, failure
from fidgpt.train.device import seed_torch
from fidgpt.train.estimates.facts import Recipe
from fidgpt.train.run_directory import print_stderr


@dataclass(frozen=True)
class _Unit:
    """A module of the model that is tried by itself.

    Attributes:
      path: in the model.
      module: part of the model, which is left unchanged.
      custom: the custom class or function that it is or holds.
      reads: what it gets: "stream and context", "stream" (of each token alone) or "tokens".
    """

    path: str
    module: nn.Module
    custom: Any
    reads: str

    def __str__(self) -> str:
        methods = ("features", "forward", "__call__")
        return describe(self.path or "model", self.module, self.custom, *methods)


_ALONE = ("attention_norm", "mlp_norm", "mlp", "attention_out_norm", "mlp_out_norm")
_READS = ("future", "past", "padding", "documents")
LARGEST = 10**8  # parameters of a module that is tried; more would take seconds


def _units(model: LanguageModel) -> Iterator[_Unit]:
    """Yield the innermost modules whose way of being called is known and that are custom."""

    def unit(path: str, module: nn.Module, reads: str) -> Iterator[_Unit]:
        if (custom := custom_part(module)) is not None:
            yield _Unit(path, module, custom, reads)

    if isinstance(model, Transformer):
        yield from unit("embedding", model.embedding, "tokens")
        yield from unit("norm", model.norm, "stream")
        for i, block in enumerate(model.blocks):
            if not isinstance(block, Block) or custom_class(type(block)):
                yield from unit(f"blocks.{i}", block, "stream and context")
    for path, block in model.named_modules():
        if isinstance(block, Block) and not custom_class(type(block)):
            mixer = block.attention
            if isinstance(mixer, nn.Module):
                yield from unit(f"{path}.attention", mixer, "stream and context")
            for name in _ALONE:
                if isinstance(child := getattr(block, name, None), nn.Module):
                    yield from unit(f"{path}.{name}", child, "stream")
    if custom_class(type(model)):
        yield from unit("", model, "tokens")


def model_errors(run: Recipe) -> Iterator[str]:
    """Yield what the custom modules of a model do that they should not."""
    units, tried, lossy = list(_units(run.model)), set[Any](), set[int]()
    held = {id(x) for x in (*run.model.parameters(), *run.model.buffers(), *run.model.modules())}
    for path, module in run.model.named_modules():
        if (custom := custom_class(type(module))) is not None:
            for text in _lost_attributes(run, module, held):
                lossy.add(id(module))
                if (custom, text) not in tried:  # of another layer
                    tried.add((custom, text))
                    yield f"{describe(path, module, custom, '__init__')} {text}"
    for unit in units:
        key = (unit.reads, _signature(unit.module))
        if key in tried:  # another layer of the same kind
            continue
        tried.add(key)
        lost = list(_lost_values(unit))
        yield from lost
        try:
            yield from Trial(run, unit).errors()
        except _Failed as error:
            if lossy.isdisjoint(map(id, unit.module.modules())):
                yield f"{unit} {error}"
        except InitError as error:
            if not lost:
                yield f"{unit} cannot be initialized: {error}"
        except _Untried as reason:
            if run.parallel.is_main:
                print_stderr(f"warning: {unit} was not tried: {reason}")


def _signature(value: object, depth: int = 6) -> Any:
    """Return what distinguishes components, by plain attributes, shapes and classes."""
    if isinstance(value, Tensor):
        return (tuple(value.shape), value.dtype, value.requires_grad)
    if isinstance(value, functools.partial):
        return (value.func, _signature(value.keywords, depth), _signature(value.args, depth))
    if isinstance(value, type) or inspect.isroutine(value) or not depth:
        return value if inspect.isroutine(value) or isinstance(value, type) else type(value)
    if isinstance(value, dict):
        return tuple((str(key), _signature(one, depth - 1)) for key, one in value.items())
    if isinstance(value, list | tuple):
        return tuple(_signature(one, depth - 1) for one in value)
    if isinstance(value, int | float | str | None):
        return value
    return (type(value), _signature(getattr(value, "__dict__", {}), depth - 1))


def _lost_attributes(run: Recipe, module: nn.Module, held: set[int]) -> Iterator[str]:
    """Yield tensors and modules that a module keeps where torch does not see them."""
    for name, value in vars(module).items():
        if name in INTERNAL:
            continue
        values = value.values() if isinstance(value, dict) else value
        items = list(values) if isinstance(value, list | tuple | dict) else [value]
        unknown = [one for one in items if id(one) not in held]
        if any(isinstance(one, nn.Module | nn.Parameter) for one in unknown):
            kind = "Module" if any(isinstance(one, nn.Module) for one in unknown) else "Parameter"
            yield (
                f"keeps {kind.lower()}s in {name}, a {type(value).__name__}, where torch "
                f"does not see them: they are neither trained nor saved. Use nn.{kind}List or "
                f"nn.{kind}Dict."
            )
        elif any(
            isinstance(one, Tensor) and (one.is_meta or one.device != run.parallel.device)
            for one in unknown
        ):
            yield (
                f"keeps a tensor in {name}, outside of parameters and buffers: it has no "
                "values, since models are built on the meta device, and is not moved to the "
                f"device. Use register_buffer({name!r}, ..., persistent=False) and fill it in "
                "reset_parameters(), or make it in forward()."
            )


_LOST = {
    "__init__": "its constructor, and the values are lost: models are built on the meta device and "
    "initialized afterwards. Give the parameter an `init`, or fill it in reset_parameters().",
    "reset_parameters": "reset_parameters(), and the values are lost: each module with parameters "
    "of its own fills these itself. Give the parameter an `init` in the constructor, as by "
    "with_init(parameter, Normal(std=0.02)) of fidgpt.model.",
}


def _lost_values(unit: _Unit) -> Iterator[str]:
    """Yield parameters that are filled in vain, as their own modules fill them afterwards."""
    lost: dict[str, list[str]] = {method: [] for method in _LOST}
    for path, module in unit.module.named_modules():
        for method, found in (
            ("__init__", _filled_in_constructor(module)),
            ("reset_parameters", _filled_of_others(module)),
        ):
            lost[method] += [".".join(part for part in (path, name) if part) for name in found]
    for method, names in lost.items():
        if names:
            where = describe(unit.path or "model", unit.module, unit.custom, method)
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            yield f"{where} fills {names[0]}{more} in {_LOST[method]}"


def _filled_in_constructor(module: nn.Module) -> list[str]:
    """Return the parameters of a module itself that a constructor filled.

    Torch counts the changes of a tensor in place, also on the meta device: those of a constructor
    are lost if they are more than what `reset_parameters` does again.
    """
    own = module._parameters.items()
    meta = {name: one for name, one in own if one is not None and one.is_meta}
    changed = {name: count for name, one in meta.items() if (count := _num_changes(one))}
    if not changed:
        return []
    twin: Any = without_memory(module)
    before = {name: _num_changes(getattr(twin, name)) for name in changed}
    if hasattr(twin, "reset_parameters"):
        with torch.no_grad():
            twin.reset_parameters()
    again = {name: _num_changes(getattr(twin, name)) - before[name] for name in changed}
    return [name for name, count in changed.items() if count > again[name]]


def _filled_of_others(module: nn.Module) -> list[str]:
    """Return the parameters of modules inside a custom one that its `reset_parameters` fills."""
    if custom_class(type(module)) is None or not hasattr(module, "reset_parameters"):
        return []
    twin: Any = without_memory(module)
    inside = {name: one for name, one in twin.named_parameters() if "." in name}
    before = {name: _num_changes(one) for name, one in inside.items()}
    for part in twin.modules():
        if part is not twin:
            part.reset_parameters = lambda: None  # which it may call
    try:
        with torch.no_grad():
            twin.reset_parameters()
    except Exception:  # it needs values
        return []
    filled = [name for name, one in inside.items() if _num_changes(one) > before[name]]
    return [name for name in filled if not hasattr(module.get_parameter(name), "init")]


def _num_changes(tensor: Tensor) -> int:
    """Return how often a tensor was changed in place."""
    return tensor._version  # noqa: SLF001 - torch has no public name for it


class _Untried(Exception):
    """A unit is too large, or of unknown width."""


class _Broken(Exception):
    """What a unit does wrong; nothing else about it can be tried."""


class _Failed(_Broken):
    """A unit raised an exception, which may have the cause of another error."""


# Changes of an output by rounding are below this share of those by what a token may read.
_ROUNDING = 1e-4


class Trial:
    """A copy of a unit with memory, small batches for it, and what it does with them.

    Args:
      run: the run.
      unit: what is tried.

    Raises:
      InitError: the unit cannot be initialized.
      _Untried: it is too large, or the width of its input is unknown.
    """

    def __init__(self, run: Recipe, unit: _Unit) -> None:
        self.run = run
        self.unit = unit
        self.size = sum(p.numel() for p in unit.module.parameters())
        if self.size > LARGEST:
            raise _Untried(f"it has {self.size:,} parameters, and {LARGEST:,} are tried at most.")
        self.width = _width(run.model)
        if self.width is None and unit.reads != "tokens":
            raise _Untried("the width of the residual stream is unknown.")
        self.device = run.parallel.device
        self.module = _with_memory(unit.module, self.device).eval()
        # So that nothing is hidden by weights that are initialized to zero.
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in self.module.parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_((0.02 * noise).to(parameter.device, parameter.dtype))
        classes = [type(module) for module in self.module.modules()]
        self.declared = {one for kind in classes for one in getattr(kind, "READS", ())}
        masks = [getattr(module, "mask", None) for module in self.module.modules()]
        self.masks: list[Any] = [mask for mask in masks if callable(mask)] or [causal]

    def errors(self) -> Iterator[str]:
        """Yield what is wrong, each time with the unit."""
        if unknown := self.declared - {*_READS}:
            listed = ", ".join(map(repr, _READS))
            yield f"{self.unit} has READS={sorted(unknown)}: declare some of {listed}."
        try:
            self._check_output()
            leaks = [*self._leaks()]
            yield from (f"{self.unit} {text}" for text in leaks)
            for text in self._leaks_in_training():
                if not leaks:  # which training has too
                    yield f"{self.unit} {text}"
            self._check_format()
            self._check_shared()
        except _Failed:
            raise
        except _Broken as error:
            yield f"{self.unit} {error}"
            return
        yield from self._without_gradient()

    def _check_output(self) -> None:
        """Check shape and dtype, and that the output depends on nothing but the input."""
        tokens, x = self._batch(self._count())
        given = x.clone()
        out = self._call(self._plain(tokens), tokens, x)
        if not isinstance(out, Tensor):
            raise _Broken(f"returns a {type(out).__name__}, not a tensor.")
        expected = [1, tokens.shape[1], out.shape[-1] if self.width is None else self.width]
        if list(out.shape) != expected:
            raise _Broken(
                f"returns the shape {list(out.shape)} for an input of {expected}: its output has "
                "the shape of its input, [batch, seq, hidden]."
            )
        if out.dtype != x.dtype:
            raise _Broken(f"returns {out.dtype} for an input of {x.dtype}: cast its output.")
        if not torch.equal(given, x):
            raise _Broken("changes its input in place, which others read too: copy it first.")
        if not out.isfinite().all():
            raise _Broken("returns NaN or inf for normally distributed input.")
        again = self._call(self._plain(tokens), tokens, x)
        if not torch.equal(out, again):
            raise _Broken(
                "returns two outputs for one input in eval mode: it draws random numbers there, or "
                "keeps state between calls. Draw only if self.training, and keep state in the "
                "cache (ctx.update_cache, ctx.keep_state)."
            )

    def _leaks(self) -> Iterator[str]:
        """Yield what it reads and should not, found by changing one token at a time."""
        count = self._count()
        tokens, x = self._batch(count)
        contexts = {"later tokens": self._plain(tokens)}
        if self.unit.reads != "stream":
            contexts["padding"] = _padded(tokens)
            contexts["other documents"] = _packed(tokens)
        else:
            contexts = {"other tokens": self._plain(tokens)}
        scale = 0.0
        for number, (name, ctx) in enumerate(contexts.items()):
            out, effect = self._effects(ctx, tokens, x)
            scale = scale or effect.max().item()
            if not number:
                alone = self._call(ctx, tokens, x)
                if (out[:1] - alone).abs().max() > _ROUNDING * max(scale, 1e-20):
                    raise _Broken(
                        "mixes the rows of a batch: its output for a row changes with the others."
                    )
            real = ctx.positions[0] >= 0
            if not out[:, real].isfinite().all():
                yield f"returns NaN or inf in a row with {name}."
                continue
            if not out.isfinite().all():
                yield (
                    "returns NaN or inf at padding, which spreads to all tokens in the next layer: "
                    "return numbers there, whichever."
                )
                continue
            bad = (effect > _ROUNDING * scale) & ~self._allowed(ctx) & real
            if bad.any():
                key, query = map(int, bad.nonzero()[0])
                yield self._leak(name, query, key)
                if name == "later tokens":
                    return
        if self.unit.reads != "stream" and "future" not in self.declared:
            yield from self._leak_from_afar(scale)

    def _leak(self, name: str, query: int, key: int) -> str:
        where = f"its output at token {query} changes with token {key}"
        if name == "other tokens":
            return (
                f"reads {name}: {where}. An MLP or a norm computes on each token alone, so that "
                "generation may call it token by token; mix tokens in the attention of a block."
            )
        declare = "" if self.masks == [causal] else ", which its mask excludes"
        kind = {"later tokens": "future", "padding": "padding", "other documents": "documents"}
        remedy = {
            "later tokens": "Let it read what ctx.visible() allows, or declare what it reads: a "
            "mask such as Prefix in its attribute `mask`, or",
            "padding": "Leave out keys that ctx.visible() excludes, and reset a state where "
            "ctx.positions <= 0; if no row of yours has padding, declare",
            "other documents": "Leave out keys that ctx.visible() excludes, and reset a state "
            "where ctx.positions == 0; if no row of yours holds several documents, declare",
        }[name]
        what = "the future" if name == "later tokens" else name
        return f"reads {what}: {where}{declare}. {remedy} READS = ({kind[name]!r},)."

    def _leak_from_afar(self, scale: float) -> Iterator[str]:
        """Yield whether it reads later tokens at a distance, by changing half of a long row."""
        count = min(self.run.seq_len, 128)
        if count <= 2 * self._count() or self.size * count > 5e8:
            return
        tokens, x = self._batch(count)
        ctx, half = self._plain(tokens), count // 2
        other_tokens, other = self._batch(count, seed=1)
        other_tokens[:, :half], other[:, :half] = tokens[:, :half], x[:, :half]
        outs = [self._call(replace(ctx, tokens=t), t, y) for t, y in
                ((tokens, x), (other_tokens, other))]  # fmt: skip
        effect = (outs[1] - outs[0])[0].abs().amax(-1)
        allowed = self._allowed(ctx)[half:].any(0)
        bad = (effect > _ROUNDING * scale) & ~allowed
        if bad.any():
            yield self._leak("later tokens", int(bad.nonzero()[-1]), half)

    def _leaks_in_training(self) -> Iterator[str]:
        """Yield what it reads in training only, as statistics of the batch.

        Two copies in one state draw the same random numbers, and get rows that are alike in half of
        the tokens. Another call of the first copy and of a new one with the same saved state shows
        what a checkpoint would not restore.

        Raises:
          _Broken: its output depends on something else than its input and what is saved.
        """
        count = self._count()
        pairs = [self._batch(count), self._batch(count, seed=1)]
        tokens, x, others, other = (torch.cat([a, a]) for pair in pairs for a in pair)
        half = count if "future" in self.declared else count // 2
        others[0, :half], other[0, :half] = tokens[0, :half], x[0, :half]
        ctx = self._plain(tokens)
        module, twin, fresh = self.module, *(copy.deepcopy(self.module) for _ in range(2))

        def call(own: nn.Module, tokens: Tensor, x: Tensor) -> Tensor:
            seed_torch(0, device=self.device)
            return self._call(replace(ctx, tokens=tokens), tokens, x, module=own.train())

        try:
            out, changed = call(module, tokens, x), call(twin, others, other)
            saved = copy.deepcopy(module.state_dict())
            names = [name for name, own in module.named_buffers()
                     if not torch.equal(own, fresh.get_buffer(name))]  # fmt: skip
            again = call(module, tokens, x)
            for _ in _python_seeds():
                fresh.load_state_dict(saved)
                if not torch.equal(again, call(fresh, tokens, x)):
                    raise _Broken(
                        "computes something in training that a resumed run would not: it depends "
                        "on state that no checkpoint holds, or on random numbers of Python or "
                        "numpy. Keep state in buffers, and draw with torch's default generator, "
                        "which is seeded at each step."
                    )
        finally:
            module.eval()
        effect = (changed - out)[0].abs().amax(-1)
        scale = (changed - out).abs().max()
        allowed = self._allowed(self._plain(tokens[:1]))[half:].any(0)
        bad = (effect > _ROUNDING * scale) & ~allowed
        bad[half:] = False
        if bad.any():
            yield (
                f"reads in training what it may not: its output at token {int(bad.nonzero()[-1])} "
                "changes with later tokens, or with other rows of the batch, as statistics of a "
                "batch do. Compute in training what evaluation computes."
            )
        self._check_buffers(names)

    def _check_buffers(self, names: Sequence[str]) -> None:
        """Check that changes of buffers in training, if there are any, reach the checkpoints."""
        exact = {name for name, own in self.module.named_modules()
                 if getattr(own, "keeps_float32", False)}  # fmt: skip
        lost = [name for name in names if name.rpartition(".")[0] not in exact]
        if lost and self.run.precision.dtype != torch.float32:
            raise _Broken(
                f"changes its buffer {lost[0]} in training, and would lose that: the run computes "
                f"in {self.run.precision.dtype}, on a copy of the model. Let the class that has "
                "the buffer set keeps_float32 = True, which shares it, or compute in float32 "
                "(fiddler:use_float32)."
            )
        if names and self.run.parallel.world_size > 1:
            raise _Broken(
                f"changes its buffer {names[0]} in training, by the rows of its own process: "
                "processes would compute with different values. Report integers by report_tally() "
                "of fidgpt.model.reports, and change the buffer in settle(), which gets their sum "
                "over all processes."
            )

    def _effects(self, ctx: AttentionContext, tokens: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs [1 + seq, seq, hidden], and how much each key changes each query.

        The first row is as it is; each of the others has one other token.
        """
        count = tokens.shape[1]
        other_tokens, other = self._batch(count, seed=1)
        changed = torch.eye(count, dtype=torch.bool, device=self.device)
        rows = torch.cat([tokens, torch.where(changed, other_tokens, tokens)])
        streams = torch.cat([x, torch.where(changed.unsqueeze(-1), other, x)])
        positions = ctx.positions.expand(count + 1, -1)
        documents = None if ctx.documents is None else ctx.documents.expand(count + 1, -1)
        whole = AttentionContext(
            positions if not ctx.contiguous else ctx.positions, documents, ctx.contiguous, rows
        )
        out = self._call(whole, rows, streams)
        return out, (out[1:] - out[:1]).abs().amax(-1)

    def _allowed(self, ctx: AttentionContext) -> Tensor:
        """Return which queries may change with which keys: [keys, queries]."""
        count = ctx.positions.shape[1]
        itself = torch.eye(count, dtype=torch.bool, device=self.device)
        position = ctx.positions[0]
        real = position >= 0
        if self.unit.reads == "stream":
            later = torch.ones_like(itself).tril(-1)  # of keys after the query
            allowed = itself | (later if "future" in self.declared else False)
            return allowed | (later.T if "past" in self.declared else False)
        allowed = itself
        for mask in self.masks:
            allowed = allowed | ctx.visible(mask)[0, 0]
        if "future" in self.declared:
            allowed = allowed | (ctx.visible(lambda query, key: key.position >= 0)[0, 0])
        for _ in range(count.bit_length()):  # over several layers
            allowed = (allowed.float() @ allowed.float()) > 0
        if "padding" in self.declared:
            allowed = allowed | ~real
        if "documents" in self.declared and ctx.documents is not None:
            allowed = allowed | (ctx.documents <= ctx.documents.T)
        return allowed.T

    def _check_shared(self) -> None:
        """Check that processes that share rows, if they will, compute what one process does."""
        parallel = self.run.parallel
        count = self._count() // 4 * 4
        size = parallel.layout(parallel.planned_size).row_size
        if size == 1 or not count or isinstance(self.module, LanguageModel):
            return
        tokens, x = self._batch(count)
        ctx, remedy = self._plain(tokens), "or use a mesh with context=1."
        try:
            column = first_difference(self._call, ctx, tokens, x, bound=_ROUNDING)
        except _Failed as error:
            raise _Failed(
                f"cannot share rows with other processes (context={size}), as what comes from "
                f"ctx.update_cache has more tokens than its input: {error} Mask these by "
                f"ctx.visible(), {remedy}"
            ) from error
        if column is not None:
            raise _Broken(
                f"computes something else if processes share rows (context={size}): its output at "
                f"token {column} needs tokens of others, which come from ctx.update_cache only. "
                f"Pass it what is read of other tokens, {remedy}"
            )

    def _check_format(self) -> None:
        """Check the dtype of the output where the run computes in another one than float32."""
        dtype = self.run.precision.dtype
        if dtype == torch.float32 or (dtype == torch.float16 and self.device.type == "cpu"):
            return
        replica = self.run.precision.replica(self.module)
        tokens, x = self._batch(self._count())
        out = self._call(self._plain(tokens), tokens, x.to(dtype), module=replica)
        if self.unit.reads != "tokens" and out.dtype != dtype:
            raise _Broken(
                f"returns {out.dtype} for an input of {dtype}, the run's precision: cast its "
                "output, as by .to(x.dtype)."
            )

    def _without_gradient(self) -> Iterator[str]:
        """Yield, or warn of, parameters that no gradient reaches."""
        unused = self._unreached()
        if not unused:
            return
        text = (
            f"{self.unit} has parameters that get no gradient: {', '.join(unused[:4])}"
            f"{' and more' if len(unused) > 4 else ''}. Use them, remove them, or freeze them "
            "(requires_grad_(False))"
        )
        if self.run.parallel.world_size > 1:
            yield f"{text}; torch's DistributedDataParallel needs a gradient of each."
        elif self.run.parallel.is_main:
            print_stderr(f"warning: {text}.")

    def _unreached(self) -> list[str]:
        """Return the names of trained parameters that are not in the graph of the output.

        One of several alike, such as an expert without tokens, may be left out by its inputs.
        """
        outside = {id(p) for p in _parameters_outside(self.run.model, self.unit.module)}
        prefix = f"{self.unit.path}." if self.unit.path else ""
        trainable = self.run.trainable or (lambda name, parameter: parameter.requires_grad)
        pairs = zip(self.unit.module.named_parameters(), self.module.parameters(), strict=True)
        trained = {
            name: own
            for (name, original), own in pairs
            if id(original) not in outside and trainable(f"{prefix}{name}", original)
        }
        for parameter in trained.values():
            parameter.requires_grad_()
        reached = self._reached()
        if not {*map(id, trained.values())} <= reached:
            self.module.train()
            try:
                reached |= self._reached()
            finally:
                self.module.eval()
        kinds = {_numbers_out(name) for name, own in trained.items() if id(own) in reached}
        return [
            f"{prefix}{name}"
            for name, own in trained.items()
            if id(own) not in reached and _numbers_out(name) not in kinds
        ]

    def _reached(self) -> set[int]:
        """Return the ids of the parameters that a backward pass would reach."""
        tokens, x = self._batch(self._count())
        with torch.enable_grad(), collecting() as reports:
            out = self._call(self._plain(tokens), tokens, x.requires_grad_())
            if isinstance(self.module, LanguageModel):
                out = self.module.unembedding(out)
            total = sum((loss.float() for loss in reports.losses.values()), out.float().sum())
        waiting: list[Any] = [total.grad_fn]
        seen, reached = set[Any](), set[int]()
        while waiting:
            node = waiting.pop()
            if node is not None and node not in seen:
                seen.add(node)
                if (variable := getattr(node, "variable", None)) is not None:
                    reached.add(id(variable))
                waiting += [following for following, _ in node.next_functions]
        return reached

    def _call(
        self, ctx: AttentionContext, tokens: Tensor, x: Tensor, module: nn.Module | None = None
    ) -> Tensor:
        """Call the module; _Failed if it raises an exception."""
        module = self.module if module is None else module
        try:
            with torch.set_grad_enabled(x.requires_grad):
                if self.unit.reads == "stream":
                    return module(x)
                if self.unit.reads == "stream and context":
                    return module(x, replace(ctx, _cached={}))
                if isinstance(module, LanguageModel):
                    return module.features(tokens, replace(ctx, _cached={}))
                return module(tokens, replace(ctx, _cached={}))
        except Exception as error:  # whatever goes wrong in a custom module
            rows = "rows of several documents" if ctx.documents is not None else "padded rows"
            what = "a small batch" if ctx.contiguous else f"a small batch of {rows}"
            what += "" if x.dtype == torch.float32 else f" in {x.dtype}"
            raise _Failed(f"fails on {what}: {failure(error)}") from error

    def _count(self) -> int:
        """Return the tokens of a small row: fewer for large modules."""
        count = 24 if self.size < 10**6 else 12 if self.size < 10**7 else 8
        return min(count, max(self.run.seq_len, 1))

    def _batch(self, count: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Return one row of random tokens and of a random stream; none is alike in two seeds."""
        generator = torch.Generator().manual_seed(seed)
        half = max(1, self.run.vocab_size // 2)
        tokens = torch.randint(half, (1, count), generator=generator)
        tokens = (tokens + seed * half).clamp(max=self.run.vocab_size - 1)
        x = torch.randn(1, count, self.width or 1, generator=generator)
        return tokens.to(self.device), x.to(self.device)

    def _plain(self, tokens: Tensor) -> AttentionContext:
        positions = torch.arange(tokens.shape[1], device=self.device).unsqueeze(0)
        return AttentionContext(positions, contiguous=True, tokens=tokens)


def _python_seeds() -> Iterator[int]:
    """Yield once; then for other seeds of Python and numpy, if the block drew from these."""
    states = random.getstate(), np.random.get_state()
    try:
        yield 0
        if repr((random.getstate(), np.random.get_state())) != repr(states):
            for seed in range(1, 32):
                random.seed(seed)
                np.random.seed(seed)
                yield seed
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def _padded(tokens: Tensor) -> AttentionContext:
    """Return a context with padding on both sides."""
    count = tokens.shape[1]
    left, right = min(3, count // 3), min(2, count // 4)
    present = torch.ones_like(tokens)
    present[:, :left] = present[:, count - right :] = 0
    return padded(tokens, present=present)


def _packed(tokens: Tensor) -> AttentionContext:
    """Return a context with three documents."""
    begins = torch.zeros_like(tokens)
    begins[:, :: max(1, -(-tokens.shape[1] // 3))] = 1
    return replace(PackedDocuments(end_of_text=1)(begins), tokens=tokens)


def _width(model: nn.Module) -> int | None:
    """Return the width of the residual stream, if the model has a token table."""
    weight = getattr(getattr(model, "embedding", None), "weight", None)
    return weight.shape[1] if isinstance(weight, Tensor) and weight.dim() == 2 else None


def _with_memory(module: nn.Module, device: torch.device) -> nn.Module:
    """Return an initialized copy of a module, which may be on the meta device."""
    if any(one.is_meta for one in (*module.parameters(), *module.buffers())):
        twin = without_memory(module)
        for original, own in zip(module.parameters(), twin.parameters(), strict=True):
            vars(own).update(vars(original))  # such as its init
        materialize(twin, device=device, seed=0)
        return twin
    return copy.deepcopy(module).to(device)


def _parameters_outside(model: nn.Module, unit: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters that modules of the model outside of a unit hold."""
    inside = {id(module) for module in unit.modules()}
    for module in model.modules():
        if id(module) not in inside:
            yield from module.parameters(recurse=False)


def _numbers_out(name: str) -> str:
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))
