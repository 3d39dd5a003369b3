"""Everything about the config graph: it knows Fiddle, and no model and no trainer.

Differences, files, drawings and the way back to directives are loaded when they are first asked
for: most runs need none of them.
"""

from typing import TYPE_CHECKING

from fidgpt.graph.binding import Inherited, Resolved, bind, resolve
from fidgpt.graph.building import Config, build, check_and_bind, rejections, resolve_checked
from fidgpt.graph.checking import check
from fidgpt.graph.cloning import clone, clone_part
from fidgpt.graph.errors import ConfigError, ConfigErrors, suggest
from fidgpt.graph.notebook import show_configs
from fidgpt.graph.outlines import outline
from fidgpt.graph.paths import find_parameter
from fidgpt.graph.provenance import (
    Assignment,
    Provenance,
    Source,
    attributed_to,
    provenance_of,
    why_text,
)
from fidgpt.graph.selectors import find, find_parameters, set_tag, tagged
from fidgpt.graph.swap import swap_all, swapped
from fidgpt.graph.values import read_value
from fidgpt.graph.walk import Node, nodes, parts, title
from fidgpt.late import lazy_exports

if TYPE_CHECKING:
    from fidgpt.graph.difference.changes import (
        Change,
        Changes,
        ItemMoved,
        PartAdded,
        PartRemoved,
        PartReplaced,
        SharingChanged,
        Side,
        TagsChanged,
        ValueChanged,
        diff_text,
    )
    from fidgpt.graph.difference.comparison import diff
    from fidgpt.graph.difference.merging import merge
    from fidgpt.graph.difference.patches import apply, apply_patch, dump_patch
    from fidgpt.graph.drawing import Drawing, draw
    from fidgpt.graph.formulas import formula
    from fidgpt.graph.reproduce import Repro, repro
    from fidgpt.graph.storage.bound import equal, fingerprint
    from fidgpt.graph.storage.files import dump, load, load_with_changes
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "difference.patches": ("apply", "apply_patch", "dump_patch"),
            "difference.changes": (
                "Change",
                "Changes",
                "ItemMoved",
                "PartAdded",
                "PartRemoved",
                "PartReplaced",
                "SharingChanged",
                "Side",
                "TagsChanged",
                "ValueChanged",
                "diff_text",
            ),
            "difference.comparison": ("diff",),
            "difference.merging": ("merge",),
            "drawing": ("Drawing", "draw"),
            "reproduce": ("Repro", "repro"),
            "storage.files": ("dump", "load", "load_with_changes"),
            "storage.bound": ("equal", "fingerprint"),
            "formulas": ("formula",),
        },
    )


show_configs()

__all__ = [
    "Assignment",
    "Change",
    "Changes",
    "Config",
    "ConfigError",
    "ConfigErrors",
    "Drawing",
    "Inherited",
    "ItemMoved",
    "Node",
    "PartAdded",
    "PartRemoved",
    "PartReplaced",
    "Provenance",
    "Repro",
    "Resolved",
    "SharingChanged",
    "Side",
    "Source",
    "TagsChanged",
    "ValueChanged",
    "apply",
    "apply_patch",
    "attributed_to",
    "bind",
    "build",
    "check",
    "check_and_bind",
    "clone",
    "clone_part",
    "diff",
    "diff_text",
    "draw",
    "dump",
    "dump_patch",
    "equal",
    "find",
    "find_parameter",
    "find_parameters",
    "fingerprint",
    "formula",
    "load",
    "load_with_changes",
    "merge",
    "nodes",
    "outline",
    "parts",
    "provenance_of",
    "read_value",
    "rejections",
    "repro",
    "resolve",
    "resolve_checked",
    "set_tag",
    "suggest",
    "swap_all",
    "swapped",
    "tagged",
    "title",
    "why_text",
]
