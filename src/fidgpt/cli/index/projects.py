"""Names that installed projects of users offer, read from their sources without importing them."""

import importlib.util
from importlib.metadata import entry_points
from pathlib import Path

from fidgpt.cli.index.store import GROUP

ROOMS = ("configs", "fiddlers", "tags", "parts")


def rooms_of_projects() -> dict[str, dict[str, Path]]:
    """For each package in the group its modules that have names to offer, as files."""
    packages = sorted({point.value for point in entry_points(group=GROUP)})
    folders = {package: _folder(package) for package in packages}
    return {package: _rooms(folder) for package, folder in folders.items() if folder}


def _rooms(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for room in ROOMS:
        for path in (folder / room / "__init__.py", folder / f"{room}.py"):
            if path.is_file():
                found.setdefault(room, path)
    return found


def _folder(package: str) -> Path | None:
    """Where a package lies; to find a package inside another one would import the outer one."""
    top, *inner = package.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)), *inner)
