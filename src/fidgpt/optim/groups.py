"""Parameter groups."""

import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import nn

from fidgpt.declarations import HoldsMatrices
from fidgpt.placement import whole_shape
from fidgpt.ranges import require_not_negative, require_size

__all__ = [
    "AllBut",
    "ByName",
    "LayerDecay",
    "ParameterGroups",
    "Predicate",
    "RateScale",
    "Rule",
    "decay_matrices",
    "hidden_matrices",
    "is_hidden_matrix",
    "is_matrix",
    "is_table",
    "is_vector",
    "mup_groups",
    "split_hidden_matrices",
]


_TABLES = re.compile(r"(?:^|\.)(?:embedding\.|\w*embedding\.weight$)")


@runtime_checkable
class Predicate(Protocol):
    """Selects parameters by name and value."""

    def __call__(self, name: str, parameter: nn.Parameter, /) -> bool: ...


def is_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Return whether a parameter has two or more dimensions and is not a stack of expert biases."""
    return parameter.dim() >= 2 and not name.endswith("bias")


def is_vector(name: str, parameter: nn.Parameter) -> bool:
    """Return whether a parameter is a norm's scale, a bias or a sink: anything but a matrix."""
    return not is_matrix(name, parameter)


def is_table(name: str, parameter: nn.Parameter) -> bool:
    """Return whether a parameter is a token or position embedding, or the unembedding."""
    return is_matrix(name, parameter) and _TABLES.search(name) is not None


def is_hidden_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Return whether a parameter is a matrix other than an embedding table."""
    return is_matrix(name, parameter) and not is_table(name, parameter)


class ByName:
    """Selects parameters whose name contains a pattern, such as `attention[.](query|key)`.

    Args:
      pattern: a regular expression.

    Raises:
      ValueError: the pattern is not a valid regular expression.
    """

    def __init__(self, pattern: str) -> None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern=} is not a regular expression: {error}.") from None
        self.pattern = pattern

    def __call__(self, name: str, parameter: nn.Parameter) -> bool:
        return re.search(self.pattern, name) is not None


class AllBut:
    """Selects all parameters except those of some modules, which are frozen.

    Args:
      modules: their names, such as `embedding`, `blocks[3]`, or `blocks[1::2].mlp` for every
        second layer from the second one on.
      among: selects those that may be trained at all; None for all.

    Raises:
      ValueError: a name is not of this form.
    """

    def __init__(self, modules: Sequence[str], among: Predicate | None = None) -> None:
        self.modules = list(modules)
        self.among = among
        self._patterns = {module: self._pattern(module) for module in self.modules}

    @staticmethod
    def _pattern(module: str) -> tuple[re.Pattern[str], list[range]]:
        pieces = re.split(r"\[([^\]]*)\]", module)
        layers: list[range] = []
        for index in pieces[1::2]:
            match = re.fullmatch(r"(\d+)(?:::([1-9]\d*))?", index)
            if match is None:
                raise ValueError(
                    f"modules={[module]!r} names no modules: write blocks[3], or blocks[1::2] for "
                    "every second layer."
                )
            first, step = int(match[1]), int(match[2] or 1)
            layers.append(range(first, sys.maxsize if match[2] else first + 1, step))
        text = r"\.(\d+)".join(map(re.escape, pieces[::2]))
        return re.compile(rf"{text}(?:\.|$)"), layers

    def frozen_by(self, name: str) -> list[str]:
        """Return which of the modules hold a parameter of a name."""
        held = []
        for module, (pattern, layers) in self._patterns.items():
            match = pattern.match(name)
            numbers = map(int, match.groups()) if match else ()
            if match and all(n in layer for n, layer in zip(numbers, layers, strict=True)):
                held.append(module)
        return held

    def __call__(self, name: str, parameter: nn.Parameter) -> bool:
        is_one = self.among is None or self.among(name, parameter)
        return is_one and not self.frozen_by(name)


def train_only(model: nn.Module, trainable: Predicate | None) -> None:
    """Set `requires_grad` of the selected parameters only; None changes nothing.

    A parameter with several names, as of tied weights, is selected by its first one; `AllBut`
    freezes it if it freezes any of them.

    Raises:
      ValueError: no parameter is left, or a module to be frozen has none.
    """
    if trainable is None:
        return
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trainable(name, parameter))
    if isinstance(trainable, AllBut):
        frozen: set[str] = set()
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if held := trainable.frozen_by(name):
                frozen.update(held)
                parameter.requires_grad_(False)
        for module in trainable.modules:
            if module not in frozen:
                raise ValueError(f"modules: {module} has no parameters to freeze; leave it out.")
    among = trainable.among if isinstance(trainable, AllBut) else trainable
    if (require := getattr(among, "require_each", None)) is not None:  # of adapters
        require(model)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("trainable selects no parameter of the model: nothing would be trained.")


Grouping = Callable[[nn.Module], list[dict[str, Any]]]
"""Splits the parameters of a model into optimizer parameter groups."""


def decay_matrices(model: nn.Module) -> list[dict[str, Any]]:
    """Return two groups: matrices with the optimizer's weight decay, and vectors without decay.

    Decaying biases and the scales of norms only distorts them, and filters of single channels are
    vectors too. Shared parameters are listed once.
    """
    filters = {id(m.weight) for m in model.modules() if _filters_channels(m)}
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    decayed = [p for name, p in trained if is_matrix(name, p) and id(p) not in filters]
    others = [p for name, p in trained if is_vector(name, p) or id(p) in filters]
    groups = [
        {"name": "matrices", "params": decayed},
        {"name": "vectors", "params": others, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _tables(model: nn.Module) -> set[int]:
    """Return the ids of parameters that are looked up by a token or position, or score tokens.

    By what holds them: the model's `embedding` and `unembedding`, torch's Embedding, and modules
    with a name such as `value_embedding`.
    """
    holders = [getattr(model, name, None) for name in ("embedding", "unembedding")]
    holders += [module for module in model.modules() if isinstance(module, nn.Embedding)]
    held = [p for module in holders if isinstance(module, nn.Module) for p in module.parameters()]
    named = model.named_parameters(remove_duplicate=False)
    return {*map(id, held), *(id(p) for name, p in named if is_table(name, p))}


def hidden_matrices(model: nn.Module) -> list[str]:
    """Return the names of the parameters that are matrices, or stacks of matrices.

    These are the weights of Linears, and what a module declares as `MATRICES`, the names of its own
    parameters [..., outside, inside] that multiply an input. Tables are left out, and so are
    matrices with one row or column, which are vectors. Shapes alone do not tell a stack of matrices
    from the filters of a convolution, or a matrix from a stack of vectors.
    """
    tables = _tables(model)
    return [
        name
        for name, parameter, is_declared in _by_declaration(model)
        if is_declared and id(parameter) not in tables and min(whole_shape(parameter)[-2:]) > 1
    ]


def _by_declaration(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, bool | None]]:
    """Yield each parameter by name, and whether its module declares it as a matrix.

    None where the module declares nothing.
    """
    for path, module in model.named_modules():
        holder: object = module
        declares = isinstance(holder, HoldsMatrices)
        matrices = {*holder.MATRICES} if isinstance(holder, HoldsMatrices) else set[str]()
        if isinstance(module, nn.Linear):
            declares, matrices = True, {*matrices, "weight"}
        for name, parameter in module.named_parameters(recurse=False):
            is_declared = name in matrices if declares else None
            yield f"{path}.{name}" if path else name, parameter, is_declared


def mup_groups(model: nn.Module, *, base_dim: int) -> list[dict[str, Any]]:
    """Return `decay_matrices` with a learning rate of lr * base_dim / width for hidden matrices.

    A learning rate tuned at width `base_dim` then transfers to any width (maximal update
    parametrization under Adam; Yang et al., 2022, arXiv:2203.03466, table 8). Tables and filters of
    convolutions, whose inputs do not grow with the width, keep the learning rate of vectors. The
    factor is the setting `width_scale` of a group, by which its weight decay is divided, so that
    each step shrinks weights by as much at any width (as the authors' package mup does).

    Args:
      model: a decoder.
      base_dim: width at which the learning rate was tuned.

    Raises:
      ValueError: base_dim is below 1, or a parameter of several dimensions is in a module that does
        not declare whether it is a matrix.
    """
    require_size(base_dim=base_dim)
    width = model.get_parameter("embedding.weight").shape[1]
    convolutions = [m for m in model.modules() if isinstance(m, _CONVOLUTIONS)]
    others = _tables(model).union(id(p) for m in convolutions for p in m.parameters())
    hidden: set[int] = set()
    for name, parameter, is_declared in _by_declaration(model):
        if id(parameter) in others or not is_matrix(name, parameter):
            continue
        if is_declared is None:
            raise ValueError(
                f"{name} {list(whole_shape(parameter))} may be a matrix, whose learning rate falls "
                f"with the width, or a stack of vectors, whose does not: declare MATRICES = "
                f'("{name.rpartition(".")[2]}",) in its class, or MATRICES = () if it is none.'
            )
        if is_declared:
            hidden.add(id(parameter))
    return _split(decay_matrices(model), hidden, settings={"width_scale": base_dim / width})


_CONVOLUTIONS = nn.Conv1d | nn.Conv2d | nn.Conv3d


def _filters_channels(module: Any) -> bool:
    """Return whether a module is a convolution that has a filter for each channel."""
    return isinstance(module, _CONVOLUTIONS) and module.weight.shape[1] == 1


def split_hidden_matrices(
    model: nn.Module,
    *,
    groups: Grouping = decay_matrices,
    match: Predicate | None = None,
    lr_scale: float = 1.0,
) -> list[dict[str, Any]]:
    """Move the matrices that Muon optimizes into separate groups with `orthogonal` set.

    Under muP their width factor is the root of the one that `mup_groups` sets: an orthogonal update
    of a square matrix that has the size of Adam's in each element has a spectral norm that grows
    like the root of the width, and Adam's grows like the width (Yang, Simon and Bernstein, 2023,
    arXiv:2310.17813).

    Args:
      model: the model to train.
      groups: returns the groups to split, whose settings are kept.
      match: selects the parameters for Muon; None for `hidden_matrices`.
      lr_scale: multiplies their learning rate.

    Raises:
      ValueError: lr_scale is negative or not finite.
    """
    require_not_negative(lr_scale=lr_scale)
    names = set(hidden_matrices(model))
    named = model.named_parameters()
    chosen = {id(p) for name, p in named if (match(name, p) if match else name in names)}
    split = _split(groups(model), chosen, settings={"orthogonal": True})
    for group in (group for group in split if group.get("orthogonal")):
        if lr_scale != 1:
            group["lr_scale"] = group.get("lr_scale", 1.0) * lr_scale
        if "width_scale" in group:
            group["width_scale"] = math.sqrt(group["width_scale"])
    return split


def _split(
    groups: Iterable[Mapping[str, Any]], chosen: Container[int], *, settings: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Split each group into its chosen parameters and the others.

    Args:
      groups: parameter groups, whose settings are kept.
      chosen: ids of parameters, all hidden matrices.
      settings: additional settings of the chosen ones.
    """
    split: list[dict[str, Any]] = []
    for group in groups:
        hidden = [p for p in group["params"] if id(p) in chosen]
        if others := [p for p in group["params"] if id(p) not in chosen]:
            split.append({**group, "params": others})
        if hidden:
            name = group.get("name", "")
            name = name if name.startswith("hidden") else f"hidden {name}".rstrip()
            split.append({**group, **settings, "name": name, "params": hidden})
    return split


_LAYER = re.compile(r"(?:^|\.)blocks\.(\d+)\.")


@runtime_checkable
class RateScale(Protocol):
    """Returns the learning-rate factor of a parameter."""

    def __call__(self, name: str, model: nn.Module, /) -> float: ...


class LayerDecay:
    """Layer-wise learning-rate decay: each layer's rate is `factor` times the next layer's rate.

    The last layer and the modules after it have the full rate; the embedding has the lowest (Howard
    and Ruder, 2018, arXiv:1801.06146; Clark et al., 2020, arXiv:2003.10555).

    Args:
      factor: ratio of consecutive layers' rates, in (0, 1].

    Raises:
      ValueError: the factor is out of range.
    """

    def __init__(self, factor: float = 0.9) -> None:
        if not 0 < factor <= 1:
            raise ValueError(f"{factor=} must be above 0 and at most 1.")
        self.factor = factor

    def __call__(self, name: str, model: nn.Module) -> float:
        layers = [_LAYER.search(name) for name, _ in model.named_parameters()]
        last = max((int(layer[1]) for layer in layers if layer), default=-1)
        if layer := _LAYER.search(name):
            return self.factor ** (last - int(layer[1]))
        return self.factor ** (last + 1) if name.startswith("embedding.") else 1.0


class Rule:
    """Optimizer settings for the parameters that it matches.

    Args:
      name: name of the group in logs and summaries.
      match: selects parameters.
      lr_scale: multiplies the learning rate.
      weight_decay: overrides the optimizer's; None keeps it.
      settings: other options of the group, such as `betas`.
      may_be_idle: whether the model may lack such parameters, as where another directive has
        replaced the module that has them.

    Raises:
      ValueError: lr_scale or weight_decay is negative or not finite.
    """

    def __init__(
        self,
        name: str,
        *,
        match: Predicate,
        lr_scale: float | RateScale = 1.0,
        weight_decay: float | None = None,
        settings: Mapping[str, Any] | None = None,
        may_be_idle: bool = False,
    ) -> None:
        if not callable(lr_scale):
            require_not_negative(lr_scale=lr_scale)
        require_not_negative(weight_decay=weight_decay)
        self.name = name
        self.match = match
        self.lr_scale = lr_scale
        self.settings = dict(settings or {})
        self.may_be_idle = may_be_idle
        if weight_decay is not None:
            self.settings["weight_decay"] = weight_decay


class ParameterGroups:
    """Splits the parameters of a model into optimizer groups by rules.

    All rules that match a parameter apply: learning-rate factors multiply, and for other settings
    the last rule wins. Parameters with equal settings form a group, named after its rules and, if
    names would be equal, its layers: `matrices, layer 2`. Parameters that match no rule form the
    group `others`, with the optimizer's settings.

    Args:
      rules: rules in order of application.

    Raises:
      ValueError: when called, if a rule matches no parameter that may not be idle.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = list(rules)

    def __call__(self, model: nn.Module) -> list[dict[str, Any]]:
        members: dict[tuple[bool, tuple[int, ...], float], dict[str, nn.Parameter]] = {}
        used: set[int] = set()
        for name, parameter in model.named_parameters():
            matched = tuple(i for i, rule in enumerate(self.rules) if rule.match(name, parameter))
            used.update(matched)
            if parameter.requires_grad:
                scales = (self.rules[number].lr_scale for number in matched)
                numbers = (scale(name, model) if callable(scale) else scale for scale in scales)
                key = (not matched, matched, math.prod(numbers, start=1.0))
                members.setdefault(key, {})[name] = parameter
        wanted = {i: rule for i, rule in enumerate(self.rules) if not rule.may_be_idle}
        if idle := [repr(rule.name) for i, rule in wanted.items() if i not in used]:
            raise ValueError(
                f"no parameter matches the rule {' or '.join(idle)} of the groups; correct its "
                "`match`, or remove it."
            )
        titles = {key: ", ".join(self.rules[i].name for i in key[1]) or "others" for key in members}
        alike, groups = Counter(titles.values()), []
        for key in sorted(members):
            title, own = titles[key], members[key]
            name = title if alike[title] == 1 else f"{title}, {_place(own)}"
            group = {"name": name, "params": [*own.values()]}
            for number in key[1]:
                group |= self.rules[number].settings
            groups.append(group if key[2] == 1 else group | {"lr_scale": key[2]})
        return groups


def _place(names: Iterable[str]) -> str:
    """Return where parameters are, such as `layers 0, 2, 4` or `layer 5, norm`."""
    layer_of = {name: _LAYER.search(name) for name in names}
    layers = sorted({int(layer[1]) for layer in layer_of.values() if layer})
    numbers = ", ".join(map(str, layers))
    inside = [f"layer{'s' * (len(layers) > 1)} {numbers}"] if layers else []
    outside = (name.partition(".")[0] for name, layer in layer_of.items() if layer is None)
    return ", ".join([*inside, *dict.fromkeys(outside)])
