"""Trials of a model's custom modules: the shape of their output, what they read, their gradients.

Each is tried on a copy with memory, by small batches, so that no number of the run changes.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fidgpt.cost import without_memory
from fidgpt.declarations import ReadsOnPurpose
from fidgpt.model.blocks import Block
from fidgpt.model.context import AttentionContext, PackedDocuments, one_document, padded
from fidgpt.model.masks import causal
from fidgpt.model.materialization import InitError, materialize
from fidgpt.model.reports import collecting
from fidgpt.model.transformer import LanguageModel, Transformer
from fidgpt.train.device import first_line
from fidgpt.train.estimates.facts import Recipe
from fidgpt.train.run_directory import print_stderr

MOST_PARAMETERS = 10**8  # of a module that is tried; more would take seconds
_WITHOUT_CONTEXT = ("attention_norm", "mlp_norm", "mlp", "attention_out_norm", "mlp_out_norm")
# Changes of an output by rounding are below this share of those by what a token may read.
_ROUNDING = 1e-4
MakeContext = Callable[[Tensor], AttentionContext]  # of tokens
# What `forward` takes; tokens come with a context too.
Inputs = Literal["tokens", "stream, context", "stream"]


class TrialError(Exception):
    """A module does something wrong; nothing else about it can be tried."""


def model_errors(run: Recipe) -> Iterator[str]:
    """Yield what the custom modules of a model do that they should not."""
    parallel, tried = run.parallel, set[Any]()
    context = parallel.layout(parallel.planned_size).row_size
    for path, (module, inputs) in _units(run.model).items():
        is_torchs = inputs == "stream" and type(module).__module__.startswith("torch.")
        custom = custom_part(module) or (type(module) if is_torchs else None)
        kind = (custom, type(module), repr(module))
        if custom is None or kind in tried:  # another layer of the same kind
            continue
        tried.add(kind)
        where = describe(path or "model", module, custom)
        if sum(parameter.numel() for parameter in module.parameters()) > MOST_PARAMETERS:
            print_stderr(f"warning: {where} is not tried: it has over {MOST_PARAMETERS:,} weights.")
            continue
        trial = ModuleTrial(
            module, inputs, _width(run.model), run.vocab_size, run.seq_len, parallel.device
        )
        errors = [*trial.errors(context=context)]
        yield from (f"{where} {text}" for text in errors)
        if not errors and (text := trial.missing_gradients(_trained(run, path))):
            if parallel.world_size > 1:
                yield f"{where} {text} DistributedDataParallel needs a gradient of each."
            elif parallel.is_main:
                print_stderr(f"warning: {where} {text}")


def _units(model: LanguageModel) -> dict[str, tuple[nn.Module, Inputs]]:
    """Return the innermost modules whose inputs are known, by path."""
    units: dict[str, tuple[object, Inputs]] = {}
    if isinstance(model, Transformer):
        units = {f"blocks.{i}": (block, "stream, context") for i, block in enumerate(model.blocks)}
        units |= {"embedding": (model.embedding, "tokens"), "norm": (model.norm, "stream")}
    for path, block in model.named_modules():
        if isinstance(block, Block) and custom_class(type(block)) is None:
            units.pop(path, None)
            units[f"{path}.attention"] = (block.attention, "stream, context")
            for name in _WITHOUT_CONTEXT:
                units[f"{path}.{name}"] = (getattr(block, name, None), "stream")
    if custom_class(type(model)):
        units[""] = (model, "tokens")
    return {
        path: (unit, inputs)
        for path, (unit, inputs) in units.items()
        if isinstance(unit, nn.Module)
    }


def _width(model: nn.Module) -> int | None:
    """Return the width of the residual stream, if the model has a token table."""
    weight = getattr(getattr(model, "embedding", None), "weight", None)
    return weight.shape[1] if isinstance(weight, Tensor) and weight.dim() == 2 else None


def _trained(run: Recipe, path: str) -> set[str]:
    """Return the names of trained parameters that only the module at `path` holds."""
    prefix = f"{path}." if path else ""
    trainable = run.trainable or (lambda name, parameter: parameter.requires_grad)
    pairs = [*run.model.named_parameters(remove_duplicate=False)]
    outside = {id(parameter) for name, parameter in pairs if not name.startswith(prefix)}
    trained = {name for name, each in pairs if id(each) not in outside and trainable(name, each)}
    return {name.removeprefix(prefix) for name in trained}


@dataclass(frozen=True)
class ModuleTrial:
    """A module, and what a copy of it with memory does with small batches.

    Attributes:
      module: a part of a model, or a model; left unchanged.
      inputs: "tokens" of an embedding or a model, "stream, context" of a mixer or a block, "stream"
        of an MLP or a norm.
      hidden_dim: width of the stream; None if unknown, for a model alone.
      vocab_size: number of tokens.
      seq_len: length of a row in the run; shorter ones are tried.
      device: where it is tried.
    """

    module: nn.Module
    inputs: Inputs
    hidden_dim: int | None
    vocab_size: int
    seq_len: int
    device: torch.device

    def errors(self, *, context: int = 1) -> Iterator[str]:
        """Yield the errors besides missing gradients.

        Args:
          context: processes that share each row in the run.
        """
        try:
            module = _with_memory(self.module, self.device).eval()
            self._check_output(module)
            yield from self._leaks(module, context)
        except (InitError, TrialError) as error:
            yield str(error)

    def _check_output(self, module: nn.Module) -> None:
        """Check the shape, the format and the numbers of the output."""
        tokens, x = self._batch()
        out, again = (self._call(module, one_document(tokens), x) for _ in range(2))
        expected = [*x.shape[:2], self.hidden_dim or out.shape[-1]]
        if list(out.shape) != expected or out.dtype != x.dtype:
            raise TrialError(
                f"returns {out.dtype} {list(out.shape)} for an input of {x.dtype} {expected}: its "
                "output has the format and the shape of its input, [batch, seq, hidden]."
            )
        if not out.isfinite().all():
            raise TrialError("returns NaN or inf for normally distributed input.")
        if not torch.equal(out, again):
            raise TrialError(
                "returns two outputs for one input in eval mode: draw random numbers only if "
                "self.training, keep state in the cache (ctx.update_cache, ctx.keep_state), and do "
                "not change the input in place."
            )

    def _leaks(self, module: nn.Module, num_sharing: int) -> Iterator[str]:
        """Yield what it reads and should not, found by changing one token at a time."""
        tokens, x = self._batch()
        contexts = {"the future": one_document, "padding": _padded, "other documents": _packed}
        if self.inputs == "stream":
            contexts = {"other tokens": one_document}
        if num_sharing > 1 and not isinstance(module, LanguageModel):
            contexts["tokens of other processes"] = _shared_keys
        scale = 0.0
        for what, context_of in contexts.items():
            out, effect = self._effects(module, context_of, tokens, x)
            scale = scale or effect.max().item()
            alone = self._call(module, ctx := context_of(tokens), x)
            if not out.isfinite().all():
                yield (
                    f"returns NaN or inf in a row with {what}, which spreads to all tokens in the "
                    "next layer: return numbers at padding, too."
                )
                continue
            if (out[:1] - alone).abs().max() > _ROUNDING * max(scale, 1e-20):
                yield "mixes the rows of a batch: its output for a row changes with the others."
                return
            allowed = self._allowed(module, ctx)
            wrong = (effect > _ROUNDING * scale) & ~allowed & (ctx.positions[0] >= 0)
            if wrong.any():
                key, query = map(int, wrong.nonzero()[0])
                where = f"its output at token {query} changes with token {key}"
                yield f"reads {what}: {where}. {_REMEDIES[what]}"
                if what == "the future":  # which the other rows have, too
                    return

    def _effects(
        self, module: nn.Module, context_of: MakeContext, tokens: Tensor, x: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the outputs [1 + seq, seq, hidden], and how much each key changes each query.

        The first row is as it is; each of the others has one other token.
        """
        other_tokens, other = self._batch(seed=1)
        changed = torch.eye(tokens.shape[1], dtype=torch.bool, device=self.device)
        rows = torch.cat([tokens, torch.where(changed, other_tokens, tokens)])
        streams = torch.cat([x, torch.where(changed.unsqueeze(-1), other, x)])
        out = self._call(module, context_of(rows), streams)
        return out, (out[1:] - out[:1]).abs().amax(-1)

    def _allowed(self, module: nn.Module, ctx: AttentionContext) -> Tensor:
        """Return which queries may change with which keys: [keys, queries]."""
        parts, positions = [*module.modules()], ctx.positions[0]
        reads = {name for part in parts if isinstance(part, ReadsOnPurpose) for name in part.READS}
        allowed = torch.eye(len(positions), dtype=torch.bool, device=self.device)
        if isinstance(ctx, SharedKeysContext):
            return allowed
        if self.inputs == "stream":
            later = torch.ones_like(allowed).tril(-1)  # of keys after the query
            allowed = allowed | (later if "future" in reads else False)
            return allowed | (later.T if "past" in reads else False)
        masks: list[Any] = [mask for part in parts if callable(mask := getattr(part, "mask", None))]
        for mask in masks or [causal]:
            allowed = allowed | ctx.visible(mask)[0, 0]
        if "future" in reads:
            allowed = allowed | ctx.visible(lambda query, key: key.position >= 0)[0, 0]
        for _ in range(len(positions).bit_length()):  # over several layers
            allowed = (allowed.float() @ allowed.float()) > 0
        if "padding" in reads:
            allowed = allowed | (positions < 0)
        if "documents" in reads and ctx.documents is not None:
            allowed = allowed | (ctx.documents <= ctx.documents.T)
        return allowed.T

    def missing_gradients(self, trained: Collection[str]) -> str:
        """Return which trained parameters get no gradient in a step of training; "" if none.

        One of several that differ by an index may be left out, as an expert without tokens is.

        Args:
          trained: names of parameters of the module.
        """
        module = _with_memory(self.module, self.device).train()
        parameters = {
            name: parameter.requires_grad_()
            for name, parameter in module.named_parameters(remove_duplicate=False)
            if name in trained
        }
        tokens, x = self._batch()
        with torch.enable_grad(), collecting() as reports:
            out = self._call(module, one_document(tokens), x.requires_grad_())
            if isinstance(module, LanguageModel):
                out = module.unembedding(out)
            sum((loss.float() for loss in reports.losses.values()), out.float().sum()).backward()
        reached = {_without_indices(name) for name, p in parameters.items() if p.grad is not None}
        missing = [name for name in parameters if _without_indices(name) not in reached]
        if not missing:
            return ""
        names = ", ".join(missing[:4]) + " and more" * (len(missing) > 4)
        remedy = "Use them, remove them, or freeze them (requires_grad_(False))."
        return f"has parameters that get no gradient: {names}. {remedy}"

    def _call(self, module: nn.Module, ctx: AttentionContext, x: Tensor) -> Tensor:
        """Call the module; TrialError if it raises an exception or returns no tensor."""
        function = module.features if isinstance(module, LanguageModel) else module
        first: Any = ctx.tokens if self.inputs == "tokens" else x
        # As a block calls it: by keyword where an MLP takes a context, or a mixer names it so.
        context = inspect.signature(getattr(function, "forward", function)).parameters.get("ctx")
        is_named = context is not None and context.kind is context.KEYWORD_ONLY
        call = functools.partial(function, first)
        if getattr(module, "takes_context", False) or (self.inputs != "stream" and is_named):
            call = functools.partial(call, ctx=ctx)
        elif self.inputs != "stream":
            call = functools.partial(call, ctx)
        try:
            with torch.set_grad_enabled(x.requires_grad):
                out = call()
        except Exception as error:  # whatever goes wrong in a custom module
            rows = "padded rows" if ctx.documents is None else "rows of several documents"
            what = "" if ctx.contiguous else f" of {rows}"
            reason = f"{type(error).__name__}: {first_line(error):.200}"
            raise TrialError(f"fails on a small batch{what}: {reason}") from error
        if not isinstance(out, Tensor):
            raise TrialError(f"returns a {type(out).__name__}, not a tensor.")
        return out

    def _batch(self, *, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Return one row of random tokens and of a random stream; none is alike in two seeds."""
        size = sum(parameter.numel() for parameter in self.module.parameters())
        count = min(max(self.seq_len, 1), 48 if size < 10**6 else 24 if size < 10**7 else 8)
        generator = torch.Generator().manual_seed(seed)
        half = max(1, self.vocab_size // 2)
        tokens = torch.randint(half, (1, count), generator=generator)
        tokens = (tokens + seed * half).clamp(max=self.vocab_size - 1)
        x = torch.randn(1, count, self.hidden_dim or 1, generator=generator)
        return tokens.to(self.device), x.to(self.device)


@dataclass(frozen=True, eq=False)
class SharedKeysContext(AttentionContext):
    """A context whose `update_cache` and `whole_rows` return the first row's tensors for all rows.

    So a changed token changes no other one's output, unless the module looks at other tokens
    elsewhere, which processes that share rows do not have.
    """

    def update_cache(
        self, owner: object, new: Sequence[Tensor], *, window: int | None = None
    ) -> Sequence[Tensor]:
        """Return the tensors of the first row."""
        return self.whole_rows(new)

    def whole_rows(self, new: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the tensors of the first row."""
        return [tensor[:1].expand_as(tensor) for tensor in new]


_REMEDIES = {
    "the future": "Let it read what ctx.visible() allows, or declare what it reads: a mask such as "
    "Prefix in its attribute `mask`, or READS = ('future',).",
    "padding": "Leave out keys that ctx.visible() excludes, or declare READS = ('padding',).",
    "other documents": "Leave out keys that ctx.visible() excludes, or declare READS = "
    "('documents',).",
    "tokens of other processes": "Pass what it reads of other tokens to ctx.update_cache, or in a "
    "recurrent layer to ctx.whole_rows, or use a mesh with context=1.",
    "other tokens": "Let the attention of a block mix tokens, or declare READS = ('past',).",
}


def _shared_keys(tokens: Tensor) -> SharedKeysContext:
    return SharedKeysContext(**vars(one_document(tokens)))


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


def _with_memory(module: nn.Module, device: torch.device) -> nn.Module:
    """Return a copy of a module, initialized as in a run.

    Weights get some noise, so that nothing is hidden by those that are initialized to zero.
    """
    twin = without_memory(module)
    materialize(twin, device=device, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in twin.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_((0.02 * noise).to(parameter.device, parameter.dtype))
    return twin


def _without_indices(name: str) -> str:
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))


_KNOWN = {"fidgpt", "torch", "numpy", "jaxtyping", "tokenizers", "safetensors"}
_SKIPPED = {*vars(nn.Module()), "init"} - {"_modules"}  # of torch's modules


def is_custom(kind: object) -> bool:
    """Return whether a class or function is neither fidgpt's, nor torch's, nor Python's."""
    top = str(getattr(kind, "__module__", None) or "builtins").partition(".")[0]
    return top not in _KNOWN and top not in sys.stdlib_module_names


@functools.cache
def custom_class(kind: type) -> type | None:
    """Return the first custom class among a class and its bases."""
    return next((base for base in kind.__mro__ if is_custom(base)), None)


def custom_part(value: object) -> Any:
    """Return the custom class or function that a component is, or that it holds; None if none is.

    Followed are the attributes of fidgpt's and torch's own objects, and containers.
    """
    waiting, seen = [value], set[int]()
    while waiting:
        part = waiting.pop()
        if isinstance(part, functools.partial):
            waiting += [*part.keywords.values(), *part.args, part.func]
        elif isinstance(part, type) or inspect.isroutine(part):
            if is_custom(part) and not isinstance(part, type(len)):
                return part
        elif isinstance(part, list | tuple | dict):
            waiting += list(part.values() if isinstance(part, dict) else part)[:100]
        elif id(part) not in seen and not isinstance(part, Tensor):
            seen.add(id(part))
            if (custom := custom_class(type(part))) is not None:
                return custom
            if type(part).__module__.startswith(("fidgpt.", "torch.nn.")):
                held = getattr(part, "__dict__", {})
                waiting += [held[name] for name in held if name not in _SKIPPED]
    return None


def describe(path: str, part: object, custom: Any) -> str:
    """Return `path (Class, file:line)` of a component that is, or holds, something custom.

    Args:
      path: in the model or the run.
      part: the component.
      custom: the custom class or function.
    """
    try:
        file = Path(inspect.getsourcefile(custom) or "")
        short = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
        where = f"{short}:{max(inspect.getsourcelines(custom)[1], 1)}"
    except (OSError, TypeError):  # made without a file
        where = custom.__module__
    is_custom_itself = custom_class(type(part)) is custom or custom is part
    kind = "" if is_custom_itself else f"{type(part).__name__} with "
    return f"{path} ({kind}{custom.__name__}, {where})"
