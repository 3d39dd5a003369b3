"""Completing the path of a file."""

import os

from fidgpt.cli.completion.word import Candidate


def complete_file(typed: str, *, folders_only: bool = False) -> list[Candidate]:
    """The files in the folder that is typed so far; hidden ones where a dot is typed."""
    folder, _, name = typed.rpartition("/")
    prefix = f"{folder}/" if "/" in typed else ""
    try:
        with os.scandir(os.path.expanduser(prefix) or ".") as entries:
            found = [(entry.name, entry.is_dir()) for entry in entries]
    except OSError:
        return []
    return [
        Candidate(f"{prefix}{one}/" if is_folder else f"{prefix}{one}", not is_folder)
        for one, is_folder in sorted(found)
        if one.startswith(name)
        and (is_folder or not folders_only)
        and (name.startswith(".") or not one.startswith("."))
    ]
