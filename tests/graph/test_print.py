"""The forms in which a graph is printed: outline, flat, what differs, Python code."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
import torch

from fidgpt import configs
from fidgpt.graph import ConfigError, bind, find_parameter, fingerprint, outline
from fidgpt.graph.codegen import python
from fidgpt.graph.edits import set_text
from fidgpt.graph.outlines import flat, set_lines

from . import namesakes
from .parts import Depth, Outer, Part, Square, Width, double, pair, product, whole_graph

ROOT = Path(__file__).parents[2]


class TestOutline:
    """A line for every argument, below the title of its node."""

    def test_every_argument_has_a_line(self) -> None:
        shared = fdl.Config(Part, width=Width.new(), other="text")
        factory = fdl.ArgFactory(Part, width=2, child=shared)
        cfg = fdl.Config(
            Outer,
            width=Width.new(3),
            depth=Depth.new(fdl.Config(double, Width.new())),
            child=[shared, {"a": 1, "b c": fdl.Partial(Outer, depth=Depth.new(), child=factory)}],
            other=[1, (2, Square), {}],
        )
        assert outline(cfg).splitlines() == [
            "Outer",
            "  width: 3",
            "  depth: &depth double",
            "    number: 3  <- width",
            "  child:",
            "    [0]: &child[0] Part",
            "      width: 3  <- width",
            "      other: 'text'",
            "    [1]:",
            "      a: 1",
            "      b c: Outer (partial)",
            "        depth: *depth",
            "        child: Part (new on each call)",
            "          width: 2",
            "          child: *child[0]",
            "  other: [1, (2, tests.graph.parts.Square), {}]",
        ]

    def test_formulas_and_unnamed_arguments(self) -> None:
        cfg = fdl.Config(Outer, width=3, child=fdl.Config(Part, width=Width.new()))
        fdl.add_tag(cfg, "width", Width)
        set_text(cfg, "depth", "{width} * 2")
        assert outline(cfg).splitlines()[2] == "  depth: {width} * 2"
        set_text(cfg, "width", "4 + {rate}")
        lines = outline(cfg).splitlines()
        assert lines[1] == "  width: &width 4 + {rate}"
        assert lines[4] == "    width: *width"
        cfg = fdl.Config(Outer, width=Width.new(3), depth=fdl.Config(product, Width.new(), 2))
        assert outline(cfg).splitlines()[3:] == ["    0: 3  <- width", "    1: 2"]

    def test_a_node_of_a_graph_shows_the_tags_that_nothing_sets(self) -> None:
        inner = fdl.Config(Part, width=Width.new(), child=[Depth.new(), Depth.new(2)])
        cfg = fdl.Config(Outer, width=Width.new(3), depth=Depth.new(4), child=inner)
        assert "      [0]: 4  <- depth" in outline(cfg).splitlines()
        assert "<-" not in outline(bind(cfg))
        assert outline(cfg.child).splitlines() == [
            "Part",
            "  width: ?  <- Width",
            "  child:",
            "    [0]: ?  <- Depth",
            "    [1]: 2",
        ]

    def test_defaults_are_marked_or_dim_on_a_terminal(self) -> None:
        cfg = fdl.Config(Outer, width=1)
        assert "\n  rate: 0.0  (default)\n" in outline(cfg, defaults=True)
        assert "\n\x1b[2m  rate: 0.0\x1b[0m\n" in outline(cfg, defaults=True, color=True)
        assert outline(cfg) == outline(cfg, color=True) == "Outer\n  width: 1\n"


class TestFlat:
    """A line `path = value` for each argument."""

    def test_shared_and_inherited_are_marked(self) -> None:
        shared = fdl.Config(Part, width=Width.new(), other="text")
        cfg = fdl.Config(Outer, width=Width.new(3), depth=0, child=[shared, {"a b": shared}])
        lines = [
            "width = 3",
            "depth = 0",
            "child[0] = &child[0] Part",
            "child[0].width = 3  <- width",
            "child[0].other = 'text'",
            "child[1]['a b'] = *child[0]",
        ]
        assert flat(cfg).splitlines() == lines
        assert set_lines(cfg).splitlines() == [lines[0], lines[2], lines[4], lines[5]]
        assert "rate = 0.0\n" in flat(cfg, defaults=True)

    @pytest.mark.slow
    def test_every_path_can_be_followed(self) -> None:
        for name in configs.__all__:
            cfg = getattr(configs, name)()
            paths = [line.partition(" = ")[0] for line in flat(cfg).splitlines()]
            assert [find_parameter(cfg, path).path for path in paths] == paths
            assert len(set(paths)) == len(paths)


def run(code: str) -> Any:
    names: dict[str, Any] = {}
    exec(compile(code, "<written>", "exec"), names)
    return names["config"]()


def again(cfg: Any) -> Any:
    return run(python(cfg))


class TestPython:
    """Code that makes the same graph again."""

    @pytest.mark.slow
    def test_every_config_is_made_again_by_clean_code(self, tmp_path: Path) -> None:
        made = {name: getattr(configs, name)() for name in configs.__all__}
        for name, cfg in {**made, "whole": whole_graph()}.items():
            code = python(cfg)
            (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
            made_again = run(code)
            assert fingerprint(made_again) == fingerprint(cfg)
            assert outline(made_again) == outline(cfg)
        config = f"--config={ROOT / 'pyproject.toml'}"
        for command in (
            ["check", "--quiet", "--exclude=whole.py", "--ignore=E501,I001"],
            ["format", "--check"],
        ):
            ruff = [sys.executable, "-m", "ruff", *command, config, str(tmp_path)]
            done = subprocess.run(ruff, capture_output=True, text=True, cwd=ROOT, check=False)
            assert not done.returncode, done.stdout + done.stderr

    def test_shared_nodes_and_lists_are_variables(self) -> None:
        shared, held = fdl.Config(Part, width=1), [fdl.Config(Part, width=1)]
        made = again(fdl.Config(pair, [shared, shared, held], [fdl.Config(Part, width=1), held]))
        assert made.first[0] is made.first[1]
        assert made.second[0] is not made.first[0]
        assert made.first[2] is made.second[1]

    def test_values_of_all_kinds(self) -> None:
        values = ["a'b", 'a"b', "\n→\\", -1.5, float("-inf"), (1,), (), 1e-30, b"" == 1]
        assert again(fdl.Config(pair, values)).first == values

    def test_names_of_modules_and_variables_do_not_meet(self) -> None:
        tagged = fdl.Config(Part, width=1)
        fdl.add_tag(tagged, "width", namesakes.Width)
        fdl.add_tag(tagged, "child", Width)
        made = again(tagged)
        assert fdl.get_tags(made, "width") == {namesakes.Width}
        assert fdl.get_tags(made, "child") == {Width}
        shared = fdl.Config(double, number=3)
        held = {"list": [shared, fdl.Config(double, shared)]}
        made = again(fdl.Config(pair, {"double": shared, "parts": shared}, held))
        assert made.first["double"] is made.second["list"][0]
        assert made.second["list"][1].number is made.first["double"]

    @pytest.mark.parametrize("value", [{1, 2}, object(), lambda: 1, torch.Size([1]), "x".upper])
    def test_values_without_a_form_are_named_with_their_place(self, value: Any) -> None:
        with pytest.raises(ConfigError, match="^child: "):
            python(fdl.Config(Outer, child=fdl.Config(Part, other=value)))

    def test_the_function_has_the_given_name(self) -> None:
        assert re.search(r"^def narrow\(\) -> ", python(configs.debug(), name="narrow"), re.M)
