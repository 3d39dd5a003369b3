"""Everything about the config graph: it knows Fiddle, and no model and no trainer.

Differences, files, drawings and the way back to directives are loaded when they are first asked
for: most runs need none of them.
"""

from typing import TYPE_CHECKING

from fidgpt.graph.binding.bind import Heard, bind, resolve
from fidgpt.graph.build import build
from fidgpt.graph.checking.check import check, checked
from fidgpt.graph.drawing.notebook import show_configs
from fidgpt.graph.edits.swap import swap_all, swapped
from fidgpt.graph.errors import ConfigError, ConfigErrors, suggest
from fidgpt.graph.history.provenance import Saying, Speaker, Story, said_by, story, why_text
from fidgpt.graph.selecting.paths import find_place
from fidgpt.graph.selecting.select import find, set_tag, tagged
from fidgpt.graph.selecting.selectors import places
from fidgpt.graph.structure.clone import clone, clone_part
from fidgpt.graph.structure.walk import Node, nodes, parts, title
from fidgpt.graph.typed.values import read_value
from fidgpt.graph.views.outline import outline
from fidgpt.late import late_names

if TYPE_CHECKING:
    from fidgpt.graph.difference.apply import apply, apply_patch, dump_patch
    from fidgpt.graph.difference.changes import (
        Change,
        ItemMoved,
        PartAdded,
        PartRemoved,
        PartReplaced,
        SharingChanged,
        Side,
        TagsChanged,
        ValueChanged,
    )
    from fidgpt.graph.difference.diff import Changes, diff
    from fidgpt.graph.difference.merge import merge
    from fidgpt.graph.difference.text import diff_text
    from fidgpt.graph.drawing.draw import draw
    from fidgpt.graph.drawing.render import Drawing
    from fidgpt.graph.spelling.repro import Repro, repro
    from fidgpt.graph.storage.file import dump, load, load_with_changes
    from fidgpt.graph.storage.fingerprint import equal, fingerprint
    from fidgpt.graph.typed.formula import formula
else:
    __getattr__, __dir__ = late_names(
        __name__,
        {
            "difference.apply": ("apply", "apply_patch", "dump_patch"),
            "difference.changes": (
                "Change",
                "ItemMoved",
                "PartAdded",
                "PartRemoved",
                "PartReplaced",
                "SharingChanged",
                "Side",
                "TagsChanged",
                "ValueChanged",
            ),
            "difference.diff": ("Changes", "diff"),
            "difference.merge": ("merge",),
            "difference.text": ("diff_text",),
            "drawing.draw": ("draw",),
            "drawing.render": ("Drawing",),
            "spelling.repro": ("Repro", "repro"),
            "storage.file": ("dump", "load", "load_with_changes"),
            "storage.fingerprint": ("equal", "fingerprint"),
            "typed.formula": ("formula",),
        },
    )


show_configs()

__all__ = [
    "Change",
    "Changes",
    "ConfigError",
    "ConfigErrors",
    "Drawing",
    "Heard",
    "ItemMoved",
    "Node",
    "PartAdded",
    "PartRemoved",
    "PartReplaced",
    "Repro",
    "Saying",
    "SharingChanged",
    "Side",
    "Speaker",
    "Story",
    "TagsChanged",
    "ValueChanged",
    "apply",
    "apply_patch",
    "bind",
    "build",
    "check",
    "checked",
    "clone",
    "clone_part",
    "diff",
    "diff_text",
    "draw",
    "dump",
    "dump_patch",
    "equal",
    "find",
    "find_place",
    "fingerprint",
    "formula",
    "load",
    "load_with_changes",
    "merge",
    "nodes",
    "outline",
    "parts",
    "places",
    "read_value",
    "repro",
    "resolve",
    "said_by",
    "set_tag",
    "story",
    "suggest",
    "swap_all",
    "swapped",
    "tagged",
    "title",
    "why_text",
]
