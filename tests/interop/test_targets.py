"""Hydra's and torchtune's trees of calls become graphs and back; errors, and hostile files."""

import importlib
import inspect
import math
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import fiddle as fdl
import pytest
import torch
from graph import parts
from graph.parts import Color, Outer, Part, Wide, Width, pair

from fidgpt import configs
from fidgpt.configs import base
from fidgpt.graph import ConfigError, bind, build, check_and_bind, clone, fingerprint, nodes
from fidgpt.interop import read_targets, write_targets
from fidgpt.model import Block

HERE = parts.__name__
ALLOWED = (HERE,)


def read(text: str) -> Any:
    """The graph of a text in which `T:name` stands for the target `name` among the toy parts."""
    return read_targets(inspect.cleandoc(text).replace("T:", f"_target_: {HERE}."), allowed=ALLOWED)


def back_and_forth(root: Any) -> Any:
    return read_targets(write_targets(root), allowed=ALLOWED)


def without_tags(root: Any) -> Any:
    """Return a bound copy of a graph without tags, but with their values."""
    bound = clone(bind(root))
    for node in nodes(bound):
        if isinstance(node.value, fdl.Buildable):
            node.value.__argument_tags__.clear()
    return bound


def test_a_tree_of_calls_is_read() -> None:
    root = read("""
        T:Outer
        width: 3
        child: {T:Part, width: 1e1, _convert_: all, _recursive_: true}
        other:
          - {T:double, _partial_: true}
          - {T:product, _args_: [2, 3, {T:double, number: 4}]}
    """)
    assert isinstance(root, fdl.Config) and isinstance(root.other[0], fdl.Partial)
    built: Any = fdl.build(root)
    assert (built.width, built.child.width, built.other[0](5)) == (3, 10, 10)
    assert type(built.child.width) is int
    assert built.other[1] == 48


def test_components_of_torchtune_are_read_without_a_call_at_the_top() -> None:
    root = read_targets(f"""
        width: 7
        model: {{_component_: {HERE}.Part, width: "${{width}}", child: "${{opt}}"}}
        opt: {{_component_: torch.nn.Linear, in_features: 2, out_features: "${{width}}"}}
    """, allowed=ALLOWED)  # fmt: skip
    assert root["model"].child is root["opt"]
    built: Any = fdl.build(root)
    assert built["opt"].out_features == 7


def test_null_is_passed_to_what_others_wrote(package: Any) -> None:
    """Others annotate `str` what may be None; fidgpt's own annotations mean what they say."""
    for text in ("Checkpointer, folder: a, last: null", "Checkpointer, folder: null"):
        part = package(text)
        last = None if "last" in text else "recipe_state.pt"
        made: Any = fdl.build(part)
        assert made.last == last
    with pytest.raises(ConfigError, match=r"num_steps: must be int, not None"):
        read_targets("{_target_: fidgpt.optim.WarmupCosine, num_steps: null, warmup_steps: 1}")


def test_a_file_is_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(f"_target_: {HERE}.double\nnumber: 2\n")
    assert fdl.build(read_targets(path, allowed=ALLOWED)) == 4
    with pytest.raises(ConfigError, match=r"no\.yaml cannot be read"):
        read_targets(tmp_path / "no.yaml")


def test_references_share_a_part() -> None:
    root = read("""
        T:Outer
        child: {T:Part, width: 4, child: "${.width}"}
        other:
          - "${child}"
          - ${other[0]}
          - ${other[0].child}
          - "wide ${child.width}, \\\\${child}"
    """)
    first, second, number, text = root.other
    assert root.child is first is second
    assert (first.child, number, text) == (4, 4, "wide 4, ${child}")


def test_values_are_read_by_their_annotation() -> None:
    root = read(
        """
        T:annotated
        numbers: [1, 2]
        color: BLUE
        number: 3
        choice: b
        by_name: {a: 1}
        function: {_target_: hydra.utils.get_method, path: NAME.double}
        square: {T:Square}
    """.replace("NAME", HERE)
    )
    assert (root.numbers, root.color, root.choice) == ((1, 2), Color.BLUE, "b")
    assert type(root.number) is float
    assert root.function is parts.double


def test_a_partial_inside_of_a_partial_is_what_the_annotation_asks() -> None:
    root = read_targets("""
        _target_: fidgpt.model.Block
        _partial_: true
        attention_norm: {_target_: torch.nn.LayerNorm, _partial_: true, normalized_shape: 8}
        mlp: {_target_: torch.nn.Identity}
    """)
    assert isinstance(root.attention_norm, fdl.ArgFactory)
    assert isinstance(root.mlp, fdl.Config)
    assert isinstance(
        read("{T:annotated, function: {T:double, _partial_: true}}").function, fdl.Partial
    )


@pytest.mark.parametrize(
    "name", ["base", "debug", "gpt2_124m", "gemma3_12b", "deepseek_v3", "gpt_oss_20b"]
)
def test_named_configs_come_back_with_their_sharing(name: str) -> None:
    cfg = getattr(configs, name)()
    text = write_targets(cfg)
    again = read_targets(text)
    assert fingerprint(again) == fingerprint(without_tags(cfg))
    assert write_targets(again).split("\n_target_")[1] == text.split("\n_target_")[1]


def test_remarks_name_what_hydra_would_build_twice_or_not_at_all() -> None:
    text = write_targets(base())
    remarks = [line for line in text.splitlines() if line.startswith("#")]
    assert "#   model.embedding.weight = model.unembedding.weight" in remarks
    assert "#   model.blocks[0].attention" in remarks
    assert "tags" in remarks[0]
    assert not write_targets(fdl.Config(Part, 1)).startswith("#")


def test_values_of_every_kind_come_back() -> None:
    texts = ["", "true", "1e3", "a: b # c", "é\u2028\n\\", "${x} \\${y} \\\\", "😀"]
    numbers = [1, 1.0, -0.0, 1e300, math.inf, True, None]
    values = [texts, numbers, {"a b": {}, "3": [[]]}, parts.double, Color]
    root = fdl.Config(pair, values, fdl.Config(parts.annotated, numbers=(1, 2), color=Color.RED))
    again = back_and_forth(root)
    assert repr(again.first) == repr(values)
    assert fingerprint(again) == fingerprint(root)


def test_shared_lists_keep_the_parts_in_them_shared() -> None:
    items = [fdl.Config(Part, 1)]
    again = back_and_forth(fdl.Config(pair, items, [items]))
    assert again.first[0] is again.second[0][0]


def test_quantities_are_written_out() -> None:
    root = fdl.Config(Outer, width=Width.new(3), child=[fdl.Config(Part, Width.new()), Width.new()])
    again = back_and_forth(root)
    assert (again.child[0].width, again.child[1]) == (3, 3)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ((1, 2), "would change when read back"),
        ({1, 2}, "cannot be written"),
        (lambda: 1, "cannot be saved by name"),
        ("???", "Missing mandatory value"),
        ({"_target_": "x"}, "cannot be written"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_would_not_come_back_is_refused(value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        write_targets(fdl.Config(pair, fdl.Config(Part, 1), {"a": value}))
    assert "second" in str(error.value)


def test_a_kind_that_would_change_is_refused_at_every_place() -> None:
    factory = fdl.ArgFactory(Wide, 1)
    holder = fdl.Partial(pair, factory, [fdl.ArgFactory(Part, 1)])  # no annotation asks for either
    with pytest.raises(
        ConfigError, match=r"(?s)first: .*ArgFactory of Wide -> Partial.*second\[0\]: "
    ):
        write_targets(holder)
    with pytest.raises(ConfigError, match="mlp: .*Partial of Identity -> ArgFactory"):
        write_targets(fdl.Partial(Block, mlp=fdl.Partial(torch.nn.Identity)))


PACKAGE = "package_with_partials"
SOURCE = """
import functools, os

def dataset(source: str, *, split: str = "train", column: str = None, packed: bool = False):
    return (source, split, column, packed)

class Checkpointer:
    def __init__(self, folder: str, last: str = "recipe_state.pt") -> None:
        self.last = last

cleaned = functools.partial(dataset, source="yahma/alpaca-cleaned")
run = os.system
whole = functools.partial(os.system, "true")
"""


@pytest.fixture
def package(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """`package(text)` reads a call of something in a package of the user's own."""
    (tmp_path / f"{PACKAGE}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda text: read_targets(f"{{_component_: {PACKAGE}.{text}}}", allowed=(PACKAGE,))


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("cleaned", ("yahma/alpaca-cleaned", "train", None, False)),
        ("cleaned, packed: true, column: null", ("yahma/alpaca-cleaned", "train", None, True)),
        ("cleaned, source: mine", ("mine", "train", None, False)),
    ],
)
def test_a_partial_stands_for_what_it_calls(package: Any, text: str, made: Any) -> None:
    part = package(text)
    assert fdl.get_callable(part).__name__ == "dataset"
    assert build(check_and_bind(part)) == made
    assert build(read_targets(write_targets(part), allowed=(PACKAGE,))) == made


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dataset, _args_: [a], source: b", "set twice"),
        ("run", "is refused: it comes from (posix|nt), a package"),
        ("whole", "is refused: it comes from (posix|nt), a package"),
    ],
)
def test_errors_in_calls_of_a_package(package: Any, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        package(text)


PAIR = f"_target_: {HERE}.pair\n"
REFUSED = (
    *("subprocess.run", "os.system", "builtins.eval", "torch.load", "torch.hub.load", "run", ""),
    *("hydra.utils.instantiate", "fidgpt.interop.read_targets", "fidgpt.interop.save_gpt2"),
    *("fidgpt.cli.train.run", "fidgpt.graph.load", "graph.partsx.double", "subprocess:run"),
    *("..os.system", "a-b.c"),
)
NOT_CONFIGURABLE = (
    *(f"{HERE}.{name}" for name in ("no_such", "fdl", "fdl.Config", "Part.__init__.__globals__")),
    *(f"{HERE}.Width", "fidgpt.tags.HiddenDim", "fidgpt.model.Atention", "torch.nn.Linea"),
    *("fidgpt.model.attention.F", "torch.nn.os", "torch.nn.functional.gelu"),
)


def mistake(text: str) -> str:
    """The message for a text, in which `T:name` stands for a toy part."""
    with pytest.raises(ConfigError) as error:
        read_targets(text.replace("T:", f"_target_: {HERE}."), allowed=(HERE,))
    return str(error.value)


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_is_refused_before_anything_is_imported(name, monkeypatch):
    imported: list[Any] = []
    monkeypatch.setattr(importlib, "import_module", lambda *args: imported.append(args))
    modules = set(sys.modules)
    for text in (
        f"_target_: {name!r}",
        f"_component_: {name!r}",
        f"{PAIR}first: {{_target_: not.allowed, x: 1}}\nsecond: [{{_target_: {name!r}}}]",
        f"{PAIR}first: {{_target_: hydra.utils.get_object, path: {name!r}}}",
        f"a: {name!r}\nb: {{_target_: '${{a}}'}}",
    ):
        assert "is refused" in mistake(text) or "not a dotted name" in mistake(text)
    new = [name for name in {*sys.modules} - modules if not name.startswith("antlr4.")]
    assert not imported and not new


@pytest.mark.parametrize("name", NOT_CONFIGURABLE)
def test_a_name_that_cannot_be_configured_is_refused(name: str) -> None:
    assert mistake(f"_target_: {name}").startswith("the top: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("other: ['${no.such}']", "other[0]: Interpolation key 'no.such' not found"),
        ("child: {T:double, number: '???'}", "child.number: Missing mandatory value"),
        ("child: {T:double, _partal_: true}", "_partal_ is unknown. Did you mean _partial_?"),
        ("child: {T:Prt}", "child: there is no"),
        ("widht: 3", "has no parameter 'widht'. Did you mean width?"),
        ("width: wide", "width: 'wide' is not an int."),
        ("child: {T:double, _args_: [1], number: 2}", "child.number: is set twice"),
        ("other: [{T:annotated, choice: c}]", "other[0].choice: 'c' is not"),
        ("other: [{T:annotated, square: {T:double, number: 1}}]", "square: must be Square or None"),
        ("child: {T:annotated, numbers: [1, 2, 3]}", "numbers: must be tuple[int, int]"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, message: str) -> None:
    assert message in mistake(f"T:Part\n{text}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("defaults: [model: big]\nx: 1", "names other files"),
        ("{T:double, _recursive_: false}", "_recursive_ must be true"),
        ("{T:double, number: '${number}'}", "number: Recursive interpolation"),
        ("{T:double, number: !include x}", "could not determine a constructor for the tag"),
        ("{T:pair, first: ['${second}'], second: ['${first}']}", "contains itself"),
    ],
)
def test_impossible_files_are_refused(text: str, message: str) -> None:
    assert message in mistake(text)
