"""A user's own modules and packages: what they offer by name, and what they do not."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fidgpt.cli import train
from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.composition import compose
from fidgpt.configs import debug
from fidgpt.graph import ConfigError, bind, dump, fingerprint
from fidgpt.runs.building import build_trainer
from fidgpt.sweep import Sweep, axis

from .conftest import Command

OWN = own_catalogue()


def refused(directive: str) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(["config:debug", directive], OWN)
    return "\n".join(str(caught.value).splitlines()[3:]).strip()


PROJECT = {
    "__init__.py": "",
    "ablations.py": """
from subprocess import run
from fidgpt.configs import debug

def narrow(width: int = 16):
    cfg = debug()
    cfg.model.hidden_dim = width
    return cfg

def _hidden():
    return debug()
""",
    "changes.py": """
__all__ = ["deeper"]
from fidgpt.fiddlers import make_large

def deeper(cfg, by: int = 2) -> None:
    cfg.model.num_layers += by

def other(cfg) -> None:
    pass
""",
    "quantities.py": "import fiddle\nclass Temperature(fiddle.Tag): 'How hot it is.'\n",
    "broken.py": "1 / 0\n",
    "parts.py": """
import fiddle, typing
from fidgpt.model import RMSNorm
from torch import nn

class Quiet(RMSNorm): pass
class Loud(typing.Protocol): pass
class Heat(fiddle.Tag): "Warmth."
class _Hidden(RMSNorm): pass
class Still(nn.Module):
    def __init__(self, hidden_dim: int) -> None:
        super().__init__()
    def forward(self, x): return x
""",
}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of the user, `fidlab`, on the path."""
    package = tmp_path / "fidlab"
    package.mkdir()
    for name, text in PROJECT.items():
        (package / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == "fidlab"]:
        del sys.modules[name]


@pytest.mark.usefixtures("lab")
class TestDottedNames:
    def test_configs_fiddlers_and_parts(self) -> None:
        cfg = compose(["config:fidlab.ablations.narrow(width=64)",
                       "fiddler:fidlab.changes.deeper(by=3)",
                       "use:model.norm=fidlab.parts.Still"], OWN).config  # fmt: skip
        assert (cfg.model.hidden_dim, cfg.model.num_layers) == (64, 5)
        assert bind(cfg).model.norm.hidden_dim == 64

    @pytest.mark.parametrize(
        ("directive", "message"),
        [
            ("fiddler:fidlab.changes.other", "fidlab.changes offers no fiddler 'other'. There"),
            ("fiddler:fidlab.changes.make_large", "fidlab.changes offers no fiddler 'make_large'."),
            ("fiddler:fidlab.broken.x", "fidlab.broken cannot be imported for fiddler "
             "'fidlab.broken.x': ZeroDivisionError"),
            ("tag:fidlab.quantities.Temperature=1", "no parameter of Trainer carries the"),
            ("use:model.norm=subprocess.Popen", "there is no component 'subprocess.Popen': "),
        ],
    )  # fmt: skip
    def test_what_is_not_offered(self, directive: str, message: str) -> None:
        found = refused(directive)
        assert found.startswith(message) and len(found) < 300


def install(lab: Path) -> None:
    """Make `fidlab` an installed project."""
    about = lab.parent / "fidlab-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: fidlab\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[fidgpt.project]\nlab = fidlab\n")


def test_an_installed_project_is_first_class(lab: Path) -> None:
    own = "def debug():\n    return narrow(8)\n"
    (lab / "configs.py").write_text(PROJECT["ablations.py"].replace("debug", "base") + own)
    (lab / "fiddlers.py").write_text(PROJECT["changes.py"])
    (lab / "tags.py").write_text(PROJECT["quantities.py"])
    (lab / "__init__.py").write_text("class Other: pass\n__all__ = ['Other']\n")
    install(lab)
    catalogue = own_catalogue()
    assert catalogue.packages == ("fidlab",)
    names = {"narrow", "fidlab.configs.narrow", "fidlab.configs.debug"}
    assert set(catalogue.configs) - set(OWN.configs) == names
    assert catalogue.configs["debug"] is debug
    assert {"Temperature", "fidlab.tags.Temperature"} < set(catalogue.tags)
    assert set(catalogue.parts) - set(OWN.parts) == {"Other", "Quiet", "Still"}
    directives = ["config:narrow", "fiddler:deeper", "use:model.norm=Still"]
    cfg = compose(directives, catalogue).config
    assert cfg.model.num_layers == 6
    assert bind(cfg).model.norm.hidden_dim == 16
    saved = compose([f"config_str:{dump(cfg)}"], catalogue).config
    assert fingerprint(saved) == fingerprint(cfg)


CONSTRAINTS = """
import math

def batches_fit_the_cluster(cfg) -> None:
    batch_size = cfg.batch_size
    if batch_size % 2:
        raise ValueError(f"{batch_size=}: our nodes take multiples of 2.")

def _helper(cfg) -> None:
    raise AssertionError
"""
WRONG = ["config:debug", "set:batch_size=3"]
MESSAGE = "batch_size=3: our nodes take multiples of 2."


class TestConstraints:
    @pytest.fixture(autouse=True)
    def written(self, lab: Path) -> None:
        (lab / "constraints.py").write_text(CONSTRAINTS)

    def test_those_of_an_installed_project_check_every_run(self, lab: Path) -> None:
        build_trainer(compose(WRONG).config, own_catalogue())
        install(lab)
        with pytest.raises(ConfigError, match=MESSAGE):
            build_trainer(compose(WRONG).config, own_catalogue())
        build_trainer(debug(), own_catalogue())
        with pytest.raises(ConfigError, match=MESSAGE):
            _ = Sweep("config:debug", axis("set:batch_size=3,4")).points

    def test_those_of_a_package_that_is_named_or_allowed(self) -> None:
        with pytest.raises(ConfigError, match=MESSAGE):
            build_trainer(compose(WRONG).config, own_catalogue(("fidlab",)))
        made = compose([*WRONG, "fiddler:fidlab.changes.deeper"], own_catalogue())
        with pytest.raises(ConfigError, match=MESSAGE):
            build_trainer(made.resolved, made.catalogue)

    def test_the_directive_is_named(self, command: Command) -> None:
        flags = [f"--config={one}" for one in WRONG]
        status, _, error = command(train.main, *flags, "--allow=fidlab", "--dry_run")
        assert status == 2
        assert error == (
            "error: directive 2 is wrong:\n  --config=set:batch_size=3\n"
            f"               ^^^^^^^^^^^^\n  {MESSAGE}\n"
        )
