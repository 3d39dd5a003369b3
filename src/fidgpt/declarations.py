"""What the class of a component may declare, besides its constructor and methods.

Each is a protocol of one attribute or method. A component declares what applies to it, as a plain
class attribute, and inherits nothing: the library needs no configuration layer for it. The table in
AGENTS.md lists them all.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

# Of every constructor: how its parameters are shown, changed, stored and trusted.


class ParametersWithAliases(Protocol):
    """Has parameters with other names in paths, where one quantity has several."""

    ALIASES: Mapping[str, str]


class ChangeableParameters(Protocol):
    """Has parameters that may change on resume: "live", "restart"; all others "never"."""

    MAY_CHANGE: Mapping[str, str]


class RepeatingLists(Protocol):
    """Has lists that are repeated up to the number in another parameter."""

    REPEATS: Mapping[str, str]


class RenamedParameters(Protocol):
    """Has former names of parameters, with the present ones; a package has its exports' names."""

    RENAMED: Mapping[str, str]


class RemovedParameters(Protocol):
    """Has former parameters, with the values whose meaning is the behavior now."""

    REMOVED: Mapping[str, object]


class SendingParameters(Protocol):
    """Has parameters that name a place that something is sent to, with the thing sent."""

    SENDS: Mapping[str, str]


class RunningParameters(Protocol):
    """Has parameters that name code that is executed, by what it is."""

    RUNS: Mapping[str, str]


class PassedAlways(Protocol):
    """Is passed, if true, to all modules that take it; a default of theirs is for calls by hand."""

    PASSED_ALWAYS: bool


class NeedsPresent(Protocol):
    """Needs files or packages that a machine may lack, which are looked for in `--dry_run` too."""

    def require_present(self) -> None:
        """Raise the error with which a run would end for lack of them."""
        ...


# Of a module: what it reads, computes and keeps.


@runtime_checkable
class MadeForRole(Protocol):
    """Fits one of the Protocols that ask for the same methods, as "FeedForward" and "Norm" do."""

    ROLE: str


@runtime_checkable
class ReadsOnPurpose(Protocol):
    """Reads the "future", the "past" (of an MLP or norm), "padding" or other "documents"."""

    READS: Sequence[str]


@runtime_checkable
class TakesContext(Protocol):
    """An MLP that is called with the context of its tokens too, as mixers are, if true."""

    takes_context: bool


@runtime_checkable
class TakesStream(Protocol):
    """A value embedding that is called with the input of its attention too, if true."""

    takes_stream: bool


@runtime_checkable
class MaskedModule(Protocol):
    """Reads the keys that a mask allows, and not all earlier ones."""

    mask: Callable[..., Any]


@runtime_checkable
class ModuleWithKernel(Protocol):
    """Computes attention by a function that may be exchanged for another one."""

    kernel: Callable[..., Any]


@runtime_checkable
class HoldsMatrices(Protocol):
    """Has parameters [..., outside, inside] of its own, by name, that multiply an input."""

    MATRICES: Sequence[str]


@runtime_checkable
class SparseModule(Protocol):
    """Has parameters that a token does not use, as experts that it is not routed to."""

    def own_idle_parameters(self) -> int:
        """Return how many of its parameters, on average, do not compute a token."""
        ...


@runtime_checkable
class Float32Module(Protocol):
    """Keeps parameters and buffers in float32 if the rest of a model computes in another format."""

    keeps_float32: bool


@runtime_checkable
class LearnsApart(Protocol):
    """Learns by a loss of its own, also where the modules around it are frozen, if true."""

    learns_apart: bool


@runtime_checkable
class BatchCounter(Protocol):
    """Has to see a whole batch before its first micro-batch, if true."""

    counts_batch: bool


class InitializedParameter(Protocol):
    """A parameter that fills itself; see `fidgpt.model.with_init`."""

    init: Callable[[Any, Any], None]


# Of a module: how processes of a mesh divide it.


class ElementwiseModule(Protocol):
    """Treats each vector of its input by itself, if true, so that heads may be on any process."""

    ELEMENTWISE: bool


class ElementwiseStream(Protocol):
    """A block that treats each token of the stream by itself outside of its components, if true."""

    ELEMENTWISE_STREAM: bool


class SplitParameters(Protocol):
    """The dimensions in which parameters are split, by "columns" and "rows"."""

    SPLIT_DIMS: Mapping[str, Mapping[str, int]]


class HoldsExperts(Protocol):
    """Has parameters and lists of modules with one item for each expert, by name."""

    PER_EXPERT: Sequence[str]


class SplitExperts(Protocol):
    """Receives the first of the experts that this process computes, of those in lists."""

    first_expert: int


class SplitHeads(Protocol):
    """Receives which part of the heads this process computes, of how many."""

    split_place: tuple[int, int]


class KnowsLayer(Protocol):
    """Receives which layer it is in, of how many."""

    layer_place: tuple[int, int]


class SplitTable(Protocol):
    """Receives the first row of the part of the token table that this process holds, if any."""

    first_row: int | None


class SplitLogits(Protocol):
    """Gets the vocabulary whose part this process computes, a `SplitVocabulary`, once divided."""

    vocabulary: Any


class SplitStream(Protocol):
    """Gets into how many parts processes share the stream after this block, once divided."""

    stream_parts: int
