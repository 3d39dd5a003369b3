"""The forms in which a graph is printed: flat, as Python code, as what differs, with defaults."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
import torch
from fiddling import apply_to_any

from fidgpt import configs, fiddlers
from fidgpt.graph import ConfigError, clone, find_parameter, fingerprint, nodes, outline
from fidgpt.graph.codegen import python
from fidgpt.graph.difference.comparison import since
from fidgpt.graph.outlines import flat, set_lines

from .parts import (
    Extra,
    Outer,
    Part,
    Rate,
    Size,
    Width,
    double,
    keywords,
    pair,
    product,
    whole_graph,
)

ROOT = Path(__file__).parents[2]


def run(code: str) -> Any:
    names: dict[str, Any] = {}
    exec(compile(code, "<written>", "exec"), names)
    return names["config"]()


def ruff(code: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename=written.py", "-"]
    done = subprocess.run(
        command, input=code, capture_output=True, text=True, cwd=ROOT, check=False
    )
    return done.stdout + done.stderr if done.returncode else ""


class TestFlat:
    """A line `path = value` for each argument."""

    def graph(self) -> fdl.Config[Outer]:
        shared = fdl.Config(Part, width=Width.new(), other="text")
        return fdl.Config(Outer, width=Width.new(3), depth=0, child=[shared, {"a b": shared}])

    def test_shared_and_inherited_are_marked(self) -> None:
        assert flat(self.graph()).splitlines() == [
            "width = 3",
            "depth = 0",
            "child[0] = &child[0] Part",
            "child[0].width = 3  <- width",
            "child[0].other = 'text'",
            "child[1]['a b'] = *child[0]",
        ]

    def test_only_what_is_set(self) -> None:
        assert set_lines(self.graph()).splitlines() == [
            "width = 3",
            "child[0] = &child[0] Part",
            "child[0].other = 'text'",
            "child[1]['a b'] = *child[0]",
        ]

    def test_defaults_on_request(self) -> None:
        assert "rate = 0.0\n" in flat(self.graph(), defaults=True)
        assert "rate" not in flat(self.graph())

    @pytest.mark.parametrize("name", configs.__all__)
    def test_every_path_can_be_followed(self, name: str) -> None:
        cfg = getattr(configs, name)()
        paths = [line.partition(" = ")[0] for line in flat(cfg).splitlines()]
        assert [find_parameter(cfg, path).path for path in paths] == paths
        assert len(set(paths)) == len(paths)


class TestOutline:
    """The outline with its defaults."""

    def test_defaults_are_marked_on_paper_and_dim_on_a_terminal(self) -> None:
        cfg = fdl.Config(Outer, width=1)
        assert "\n  rate: 0.0  (default)\n" in outline(cfg, defaults=True)
        assert "\n\x1b[2m  rate: 0.0\x1b[0m\n" in outline(cfg, defaults=True, color=True)
        assert outline(cfg) == outline(cfg, color=True) == "Outer\n  width: 1\n"


class TestSince:
    """What differs from the config that a graph began with."""

    def test_each_difference_is_a_line(self) -> None:
        cfg = configs.base()
        cfg.num_steps = 7
        first, *changes = since(configs.base(), cfg, name="config:base").splitlines()
        assert first == "config:base, but"
        assert len(changes) == 1
        assert "num_steps: 450 -> 7" in changes[0]

    def test_no_difference(self) -> None:
        assert since(configs.base(), configs.base(), name="config:base") == (
            "config:base, unchanged\n"
        )


class TestPython:
    """Code that makes the same graph again."""

    @pytest.mark.parametrize("name", configs.__all__)
    def test_every_config_is_made_again_by_code_that_is_clean(self, name: str) -> None:
        cfg = getattr(configs, name)()
        code = python(cfg)
        again = run(code)
        assert fingerprint(again) == fingerprint(cfg)
        assert outline(again) == outline(cfg)
        assert ruff(code, "check", "--quiet") == ""
        assert ruff(code, "format", "--check") == ""

    @pytest.mark.parametrize("name", fiddlers.__all__)
    def test_so_is_every_fiddled_config(self, name: str) -> None:
        cfg = configs.base()
        apply_to_any(cfg, name)
        assert outline(run(python(cfg))) == outline(cfg)

    def test_everything_that_a_file_can_hold(self) -> None:
        cfg = whole_graph()
        code = python(cfg)
        assert repr(run(code)) == repr(cfg)
        assert outline(run(code)) == outline(cfg)
        assert ruff(code, "format", "--check") == ""

    def test_a_shared_part_is_a_variable_and_an_equal_one_is_not(self) -> None:
        shared = fdl.Config(Part, width=1)
        cfg = fdl.Config(pair, [shared, shared], fdl.Config(Part, width=1))
        again = run(python(cfg))
        assert again.first[0] is again.first[1]
        assert again.second is not again.first[0]

    def test_a_shared_list_of_parts_stays_one(self) -> None:
        shared = [fdl.Config(Part, width=1)]
        again = run(python(fdl.Config(pair, shared, shared)))
        assert again.first is again.second

    def test_several_tags_on_one_parameter(self) -> None:
        cfg = fdl.Config(Part, width=2)
        for tag in (Rate, Extra):
            fdl.add_tag(cfg, "width", tag)
            fdl.add_tag(cfg, "other", tag)
        again = run(python(cfg))
        assert fdl.get_tags(again, "width") == fdl.get_tags(again, "other") == {Rate, Extra}
        assert again.width == 2
        assert "other" not in again.__arguments__

    def test_a_keyword_may_be_the_name_of_an_argument(self) -> None:
        cfg = fdl.Config(keywords, **{"class": 1, "odd name": 2, "plain": 3})
        assert run(python(cfg)) == cfg

    def test_values_of_all_kinds(self) -> None:
        values = ["a'b", 'a"b', "\n→\\", -1.5, float("-inf"), (1,), (), Size(1, 2), 1e-30, b"" == 1]
        assert run(python(fdl.Config(pair, values))).first == values

    def test_names_of_two_modules_do_not_meet(self) -> None:
        other = type("Part", (), {"__module__": "fidgpt.graph.outlines", "__init__": Part.__init__})
        import fidgpt.graph.outlines as views

        views.Part = other  # pyright: ignore[reportAttributeAccessIssue]
        try:
            cfg = fdl.Config(pair, fdl.Config(Part, width=1), fdl.Config(other, width=2))
            again = run(python(cfg))
        finally:
            del views.Part  # pyright: ignore[reportAttributeAccessIssue]
        assert fdl.get_callable(again.first) is Part
        assert fdl.get_callable(again.second) is other

    def test_variables_do_not_hide_what_is_imported(self) -> None:
        shared = fdl.Config(double, number=3)
        cfg = fdl.Config(pair, {"double": shared}, {"list": [shared, fdl.Config(double, shared)]})
        again = run(python(cfg))
        assert again.first["double"] is again.second["list"][0]
        assert again.second["list"][1].number is again.first["double"]

    def test_a_chain_of_a_thousand_parts(self) -> None:
        cfg = fdl.Config(Part, width=0)
        for width in range(1000):
            cfg = fdl.Config(Part, width=width, child=cfg)
        again = run(python(cfg))
        assert [node.value.width for node in nodes(again)] == [
            node.value.width for node in nodes(cfg)
        ]

    def test_diamonds_of_lists_are_written_once(self) -> None:
        inner: Any = fdl.Config(Part, width=1)
        for _ in range(40):
            inner = [inner, inner]
        count = len(python(fdl.Config(pair, inner)).splitlines())
        assert count < 60

    def test_an_argument_without_those_before_it_is_refused(self) -> None:
        cfg = fdl.Config(product, 1, 2, 3)
        del cfg.__arguments__[1]
        with pytest.raises(ConfigError, match="cannot pass argument 2 without"):
            python(cfg)

    @pytest.mark.parametrize("value", [{1, 2}, object(), lambda: 1, torch.Size([1]), "x".upper])
    def test_what_has_no_form_is_named_with_its_place(self, value: Any) -> None:
        with pytest.raises(ConfigError, match="^child: "):
            python(fdl.Config(Outer, child=fdl.Config(Part, other=value)))

    def test_the_function_has_the_name_one_asks_for(self) -> None:
        assert re.search(
            r"^def narrow\(\) -> ", python(clone(configs.debug()), name="narrow"), re.M
        )
