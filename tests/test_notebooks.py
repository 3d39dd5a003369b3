"""The notebooks run from top to bottom, and show what they promise."""

import json
import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from fidgpt.sweep import read_results

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))
LIMIT = 240  # seconds a cell may take on a machine that is busy
SVG = "image/svg+xml"
HAS_PORT = shutil.which("graphviz-pure", path=sysconfig.get_path("scripts")) is not None

pytestmark = [pytest.mark.slow(5), pytest.mark.xdist_group("notebooks")]


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a kernel that is this very Python, whatever kernels the machine has."""
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": command, "display_name": "tests", "language": "python"}
    folder = tmp_path / "jupyter" / "kernels" / "fidgpt-tests"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    for name in ("JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    return folder.name


def outputs(
    name: str, kernel: str, folder: Path, path: str, *, parameters: str = ""
) -> dict[str, list[Any]]:
    """What each cell of a notebook shows, by the cell's id.

    Args:
      name: of its file.
      kernel: what runs it.
      folder: where.
      path: where programs are.
      parameters: code after that of the cell which is tagged so.
    """
    notebook = nbformat.read(FOLDER / name, as_version=4)
    for cell in notebook.cells:
        if "parameters" in cell.metadata.get("tags", []):
            cell.source += f"\n{parameters}"
    client = NotebookClient(
        notebook,
        timeout=LIMIT,
        kernel_name=kernel,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"})
    return {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}


def printed(shown: list[Any]) -> str:
    return "".join(output["text"] for output in shown if output.output_type == "stream")


def picture(shown: list[Any]) -> dict[str, str]:
    (found,) = [output["data"] for output in shown if output.output_type == "execute_result"]
    return found


def texts(svg: str) -> list[str]:
    return [text.strip() for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg)]


def assert_shows_what_it_promises(shown: dict[str, list[Any]], *, is_drawn: bool) -> None:
    whole, difference = picture(shown["imports"]), picture(shown["make-large"])
    assert (SVG in whole) is (SVG in difference) is is_drawn
    assert whole["text/plain"].count("&model.embedding.weight token_table") == 1
    assert whole["text/plain"].count(": RoPE") == 1
    if is_drawn:
        assert texts(whole[SVG]).count("token_table") == texts(whole[SVG]).count("RoPE") == 1
        assert texts(picture(shown["one-layer"])[SVG]).count("RoPE") == 1
        assert {"1280", "36"} <= set(texts(difference[SVG]))
    assert re.search(r"~ model.hidden_dim: \d+ -> 1280, inherited by", printed(shown["make-large"]))
    assert picture(shown["order-does-not-matter"])["text/plain"] == "True"
    assert "an equal token_table of its own" in printed(shown["untie"])
    assert re.fullmatch(r"~ optimizer.lr: \S+ -> 0.002\s*", printed(shown["learning-rate"]))
    assert ": Block like model.blocks[0]" in printed(shown["one-layer"])
    assert "~ model.blocks[2].mlp: SwiGLU -> GELU" in printed(shown["one-layer"])
    assert "~ model.blocks[0].mlp: SwiGLU -> MoE" in printed(shown["use-moe"])
    if is_drawn:
        boxes = texts(picture(shown["use-moe"])[SVG])
        assert {"MoE", "SoftmaxRouter", "GatedExperts"} <= set(boxes)
    families = printed(shown["llama-and-qwen"]).splitlines()
    assert "~ model.num_layers: 32 -> 36, inherited by 1 parameter" in families
    assert any(line.startswith("+ model.blocks[0].attention.query_norm") for line in families)
    assert len(families) < 20
    assert "tied: True" in printed(shown["build-it"])


def test_there_are_notebooks() -> None:
    known = ["config_graph.ipynb", "learning_rate_sweep.ipynb"]
    assert known == NOTEBOOKS, "a new notebook needs a test of what it shows"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_are_committed_without_outputs(name: str) -> None:
    cells = nbformat.read(FOLDER / name, as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert not [cell.id for cell in code if cell.outputs or cell.execution_count]


def test_the_config_graph_is_drawn_where_a_program_is(kernel: str, tmp_path: Path) -> None:
    shown = outputs("config_graph.ipynb", kernel, tmp_path, os.environ["PATH"])
    assert_shows_what_it_promises(shown, is_drawn=bool(shutil.which("dot")) or HAS_PORT)


def test_the_learning_rate_sweep_is_run_and_drawn(kernel: str, tmp_path: Path) -> None:
    toy = 'widths, target, rates, num_steps, warmup_steps = [32], 64, "1e-3,1e-2", 2, 1'
    parameters = f'{toy}\ndirectory = "{tmp_path / "toy"}"'
    name, path = "learning_rate_sweep.ipynb", os.environ["PATH"]
    shown = outputs(name, kernel, tmp_path, path, parameters=parameters)
    assert printed(shown["sweep"]) == "6 points\n"
    (table,) = [output["data"]["text/markdown"] for output in shown["run"]]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    assert [row[0] for row in cells[2:]] == ["muP 32", "muP 64", "standard 32", "standard 64"]
    assert cells[3][1:3] == cells[5][1:3]  # at the width of the target, both are the same model
    results = {
        (row["values"]["model"], row["values"]["LearningRate"]): row["metrics"]["validation/loss"]
        for row in read_results(tmp_path / "toy")
    }
    losses = {rate: results["standard 32", rate] for rate in ("1e-3", "1e-2")}
    best = min(losses, key=lambda rate: losses[rate])
    assert (float(cells[4][1]), cells[4][2]) == (float(best), f"{losses[best]:.3f}")
    assert cells[5][3] == f"{results['standard 64', best]:.3f}"
    (drawn,) = [output for output in shown["curves"] if output.output_type == "display_data"]
    assert "image/png" in drawn["data"]
    page = picture(shown["report"])["text/html"]
    assert page.startswith("<iframe srcdoc=") and "won, with validation/loss" in page
