"""Records what one pass of a model computes, moves, sends and keeps, operation by operation.

The pass may be on the meta device, where nothing takes memory or time. Modules of a user's own are
recorded like any other: what counts is which operations of torch they call.
"""

import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fidgpt.attributes import changed
from fidgpt.model.kernels import Scoring, blockwise, fastest, flex, sdpa
from fidgpt.model.masks import causal


class Product(NamedTuple):
    """A product [m, k] x [k, n], `batch` of them at once, in elements of `itemsize` bytes."""

    batch: int
    m: int
    k: int
    n: int
    itemsize: int

    @property
    def flops(self) -> float:
        """Operations; a multiply-add is two."""
        return 2.0 * self.batch * self.m * self.k * self.n

    @property
    def bytes(self) -> float:
        """What it reads and writes."""
        elements = self.m * self.k + self.k * self.n + self.m * self.n
        return float(self.batch * elements * self.itemsize)


class Sent(NamedTuple):
    """A collective over an axis: `gather`, `scatter`, `reduce` or `exchange`, of a whole tensor."""

    axis: str
    kind: str
    bytes: int


class Amounts:
    """Base of dataclasses whose fields are numbers, or mappings to numbers, that add up."""

    def times(self, factor: float) -> Self:
        """Return every amount times a factor."""
        return type(self)(**{name: _scaled(x, factor) for name, x in vars(self).items()})

    def __add__(self, other: Self) -> Self:
        return type(self)(**{name: _sum(x, vars(other)[name]) for name, x in vars(self).items()})


def _scaled(amount: Any, factor: float) -> Any:
    if not isinstance(amount, dict):
        return amount * factor
    return type(amount)({key: number * factor for key, number in amount.items()})


def _sum(left: Any, right: Any) -> Any:
    if not isinstance(left, dict):
        return left + right
    return type(left)({key: left.get(key, 0) + right.get(key, 0) for key in {**left, **right}})


@dataclass
class Work(Amounts):
    """What a part of a pass does.

    Attributes:
      products: matrix products, with their numbers.
      attention: operations of scores and weighted values, by the head dimension.
      moved: bytes that other operations read and write.
      launches: number of operations started on the device.
      sent: collectives, with their numbers.
    """

    products: Counter[Product] = field(default_factory=Counter)
    attention: Counter[int] = field(default_factory=Counter)
    moved: float = 0.0
    launches: float = 0
    sent: Counter[Sent] = field(default_factory=Counter)

    @property
    def flops(self) -> float:
        """Operations of products and attention."""
        products = sum(product.flops * count for product, count in self.products.items())
        return products + sum(self.attention.values())


# Where the factors of a product stand among the arguments; the weight of the grouped form is a
# stack of matrices, and each row is multiplied with one of them.
_PRODUCTS = {
    "aten.mm.default": (0, 1),
    "aten.bmm.default": (0, 1),
    "aten.addmm.default": (1, 2),
    "aten.baddbmm.default": (1, 2),
    "aten._scaled_mm.default": (0, 1),
    "aten._grouped_mm.default": (0, 1),
    "fidgpt.grouped_linear.default": (0, 1),
    "fidgpt.grouped_outer.default": (0, 1),
}
# The place of query, key and value among the arguments, and the operations of each pair of query
# and key by the sizes of key and value; gradients take scores again, and four more products.
_ATTENTION = {
    "fidgpt.planned_attention.default": (0, 2.0),
    "fidgpt.planned_attention_gradients.default": (0, 5.0),
    "aten._scaled_dot_product_flash_attention_for_cpu.default": (0, 2.0),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": (1, 5.0),
}


def _product(name: str, args: Any, out: Tensor) -> Product:
    left, right = (args[place] for place in _PRODUCTS[name])
    size = left.element_size()
    if name == "fidgpt.grouped_outer.default":
        groups = len(out)
        return Product(groups, left.shape[1], max(1, len(left) // groups), right.shape[1], size)
    if left.dim() == 2 and right.dim() == 3:  # grouped
        groups, wide = len(right), name.startswith("fidgpt.")
        return Product(
            groups, max(1, len(left) // groups), left.shape[1], right.shape[1 if wide else 2], size
        )
    if left.dim() == 2 and out.dim() == 3:  # gradients of grouped weights
        groups = len(out)
        return Product(groups, left.shape[0], max(1, left.shape[1] // groups), right.shape[1], size)
    batch = math.prod(left.shape[:-2])
    return Product(batch, left.shape[-2], left.shape[-1], right.shape[-1], size)


class Recorder(TorchDispatchMode):
    """Counts work and memory inside its context, by the section that is being computed.

    Args:
      before: tensors that existed before, which are not counted.

    Attributes:
      sections: work by the name of a section.
      now: bytes of tensors that were made inside and still exist, whoever holds them.
      peaks: the most so far in each section, with `elsewhere`.
      largest: bytes of the largest tensor that each section made.
      elsewhere: bytes that the same modules hold which are not executed, but only counted.
    """

    def __init__(self, before: Iterable[Tensor]) -> None:
        super().__init__()
        self.sections: dict[str, Work] = {}
        self.now = self.elsewhere = 0
        self.peaks: dict[str, int] = {}
        self.largest: dict[str, int] = {}
        self._known = weakref.WeakSet(tensor.untyped_storage() for tensor in before)
        self.enter("begin")

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # loading it takes seconds, and nothing is compiled here

    def enter(self, section: str) -> None:
        """Count what follows under a section."""
        self._section, self._work = section, self.sections.setdefault(section, Work())

    def send(self, axis: str, kind: str, size: int) -> None:
        """Count a collective."""
        self._work.sent[Sent(axis, kind, size)] += 1

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.nonzero.default and args[0].is_meta:  # as if all tokens counted
            out = args[0].new_empty(args[0].numel(), args[0].dim(), dtype=torch.int64)
        else:
            out = _computed(func, args, kwargs or {})
        new = 0
        outs = out if isinstance(out, tuple | list) else (out,)
        for tensor in outs:
            if not isinstance(tensor, Tensor):
                continue
            storage = tensor.untyped_storage()
            if storage in self._known:
                continue
            self._known.add(storage)
            new += tensor.nbytes
            self._add(storage.nbytes())
            largest = max(self.largest.get(self._section, 0), storage.nbytes())
            self.largest[self._section] = largest
            weakref.finalize(storage, self._add, -storage.nbytes())
        self._count(str(func), args, outs, new)
        return out

    def _count(self, name: str, args: Any, outs: Any, new: int) -> None:
        if name in _PRODUCTS:
            self._work.products[_product(name, args, outs[0])] += 1
        elif name in _ATTENTION:
            first, each = _ATTENTION[name]
            query, key, value, *others = args[first:]
            if name.startswith("aten."):  # torch's function, which takes whether it is causal
                is_causal = any(x is True for x in others)
                pairs = _visible_pairs(query.shape[2], key.shape[2], None, is_causal)
            else:
                pairs = others[0]
            sizes = query.shape[-1] + value.shape[-1]
            heads = query.shape[0] * query.shape[1]
            self._work.attention[query.shape[-1]] += int(each * heads * pairs * sizes)
        elif new or name.endswith("_.default") or "_." in name:  # no view, and no factory
            read = sum(x.nbytes for x in _tensors(args))
            if not read:
                return
            self._work.moved += read + (new or outs[0].nbytes)
        else:
            return
        self._work.launches += 1

    def _add(self, count: int) -> None:
        self.now += count
        peak = max(self.peaks.get(self._section, 0), self.now + self.elsewhere)
        self.peaks[self._section] = peak


_Like = tuple[torch.Size, tuple[int, ...], torch.dtype]
# What operations return on the meta device, by what they are called with; None if they return views
# or change something. Torch finds the shapes of many in Python, which takes most of the time.
_outputs: dict[object, tuple[type, list[_Like | None]] | None] = {}


def _computed(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call an operation, or return tensors as it returned them before without memory."""
    try:
        key = (func, _described(args), _described(kwargs))
        if (known := _outputs.get(key)) is not None:
            kind, likes = known
            made = [None if like is None else _empty(like) for like in likes]
            return made[0] if kind is Tensor else kind(made)
    except TypeError:  # of tensors with memory, or an argument that cannot be compared
        return func(*args, **kwargs)
    out = func(*args, **kwargs)
    if key not in _outputs:
        _outputs[key] = _likes(out, [*_tensors([args, *kwargs.values()])])
    return out


def _described(argument: Any) -> object:
    """Return what the shapes that an operation returns depend on."""
    if isinstance(argument, Tensor):
        if not argument.is_meta or type(argument) not in (Tensor, nn.Parameter):
            raise TypeError
        return argument.shape, argument.stride(), argument.dtype
    if isinstance(argument, tuple | list):
        return tuple(map(_described, argument))
    if isinstance(argument, dict):
        return tuple((name, _described(value)) for name, value in argument.items())
    return type(argument), argument


def _likes(out: Any, inputs: Sequence[Tensor]) -> tuple[type, list[_Like | None]] | None:
    kind = Tensor if isinstance(out, Tensor) else type(out)
    outs = [out] if kind is Tensor else out
    held = {tensor.untyped_storage() for tensor in inputs}
    likes: list[_Like | None] = []
    if kind not in (Tensor, tuple, list):
        return None
    for tensor in outs:
        like = None if tensor is None else _like(tensor)
        if tensor is not None and (like is None or tensor.untyped_storage() in held):
            return None
        likes.append(like)
    return kind, likes


def _like(tensor: Any) -> _Like | None:
    """Return how to make a tensor that is whole, and nothing else's; None for others."""
    if type(tensor) is not Tensor or not tensor.is_meta:
        return None
    like = tensor.shape, tensor.stride(), tensor.dtype
    return (
        like
        if _empty(like).untyped_storage().nbytes() == tensor.untyped_storage().nbytes()
        else None
    )


def _empty(like: _Like) -> Tensor:
    shape, stride, dtype = like
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


class _Mark(torch.autograd.Function):
    """Enters a section in the forward pass, and another one when its gradient is there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Callable[[], object], backward: Any) -> Tensor:
        ctx.backward_begins = backward
        forward()
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        ctx.backward_begins()
        return outer[0], None, None


def mark(x: Tensor, forward: Callable[[], object], backward: Callable[[], object]) -> Tensor:
    """Call a function now, and another one in the backward pass once it reaches `x`."""
    return _Mark.apply(x, forward, backward)


def _empty_outputs(
    query: Tensor, key: Tensor, value: Tensor, pairs: float
) -> tuple[Tensor, Tensor]:
    """Return outputs [batch, queries, heads, value_dim] and log-sums without computing them."""
    batch, heads, length, _ = query.shape
    out = query.new_empty(batch, length, heads, value.shape[-1])
    return out, query.new_empty(batch, heads, length, dtype=torch.float32)


def _empty_gradients(
    query: Tensor, key: Tensor, value: Tensor, pairs: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients without computing them."""
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


# Not a `custom_op`, which loads torch._dynamo when it is called on tensors with memory.
_library = torch.library.Library("fidgpt", "FRAGMENT")
_library.define(
    "planned_attention(Tensor query, Tensor key, Tensor value, float pairs) -> (Tensor, Tensor)"
)
_library.define(
    "planned_attention_gradients(Tensor query, Tensor key, Tensor value, float pairs)"
    " -> (Tensor, Tensor, Tensor)"
)
_library.impl("planned_attention", _empty_outputs, "CompositeExplicitAutograd")
_library.impl("planned_attention_gradients", _empty_gradients, "CompositeExplicitAutograd")


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:3], *output)
    ctx.pairs = inputs[3]


def _gradients(ctx: Any, *outer: Tensor) -> Any:
    own = torch.ops.fidgpt.planned_attention_gradients
    return *own(*ctx.saved_tensors[:3], ctx.pairs), None


torch.library.register_autograd(
    "fidgpt::planned_attention", _gradients, setup_context=_keep, lib=_library
)


def fused_attention(query: Tensor, key: Tensor, value: Tensor, pairs: float) -> Tensor:
    """Return what a fused kernel would, which keeps no scores, for so many pairs of each head."""
    return torch.ops.fidgpt.planned_attention(query, key, value, pairs)[0].transpose(1, 2)


def _visible_pairs(num_queries: int, num_keys: int, window: int | None, is_causal: bool) -> float:
    """Return how many pairs of query and key a kernel computes of one head of one row.

    Of a causal mask that is half; each query is as likely early as late, where it sees fewer than
    its window.
    """
    if not is_causal:
        return float(num_queries * num_keys)
    seen = num_keys if window is None else min(window, num_keys)
    return num_queries * seen * (1 - (seen - 1) / (2 * num_keys))


def _planned_kernel(query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
    """The kernel of attention of a plan."""
    pairs = _visible_pairs(query.shape[2], key.shape[2], scoring.window, scoring.mask is causal)
    return fused_attention(query, key, value, pairs)


def plan_kernels(model: nn.Module) -> None:
    """Let attention compute nothing, where a device would take a fused kernel."""
    for module in model.modules():
        if getattr(module, "kernel", None) in (fastest, sdpa, flex, blockwise):
            setattr(module, "kernel", _planned_kernel)  # noqa: B010


_rms_norm, _attention = F.rms_norm, F.scaled_dot_product_attention


def _norm(x: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    return _FusedNorm.apply(x, weight) if x.is_meta else _rms_norm(x, shape, weight, eps)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **others: Any,
) -> Tensor:
    if not query.is_meta:
        return _attention(query, key, value, attn_mask, dropout_p, is_causal, **others)
    is_half = is_causal or attn_mask is not None
    pairs = _visible_pairs(query.shape[-2], key.shape[-2], None, is_half)
    return fused_attention(query, key, value, pairs)


class _FusedNorm(torch.autograd.Function):
    """Keeps the input, and one number for each row of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None) -> Tensor:
        rows = x.new_empty(x.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(x, rows, *([] if weight is None else [weight]))
        return torch.neg(x)  # as much as it reads and writes

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        x, _, *weight = ctx.saved_tensors
        gradient = torch.add(x, outer[0]) if ctx.needs_input_grad[0] else None
        if not weight or not ctx.needs_input_grad[1]:
            return gradient, None
        return gradient, outer[0].sum([*range(x.dim() - 1)])


def fused_operations() -> AbstractContextManager[None]:
    """Context in which functions take fused kernels where meta tensors have chains of small ones.

    They are replaced by name: torch leaves its modes of functions in backward passes, in which
    blocks are recomputed. With other tensors they compute as ever, as another thread may train.
    """
    return changed(F, rms_norm=_norm, scaled_dot_product_attention=_attend)
