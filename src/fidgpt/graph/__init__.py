"""Everything about the config graph: it knows Fiddle, but no model and no trainer."""

from fidgpt.errors import ConfigError, ConfigErrors, suggest
from fidgpt.graph.binding import Inherited, Resolved, bind, resolve
from fidgpt.graph.bound import equal, fingerprint
from fidgpt.graph.building import Config, build, check_and_bind, rejections, resolve_checked
from fidgpt.graph.checking import check
from fidgpt.graph.difference.changes import Change, PartAdded, ValueChanged, diff_text
from fidgpt.graph.difference.comparison import diff
from fidgpt.graph.difference.patches import apply, apply_patch, dump_patch, merge
from fidgpt.graph.drawing import Drawing, draw, show_configs
from fidgpt.graph.edits import swap_all, swapped
from fidgpt.graph.expressions import read_value
from fidgpt.graph.files import dump, load, load_with_changes
from fidgpt.graph.formulas import formula
from fidgpt.graph.hints import computed
from fidgpt.graph.outlines import outline
from fidgpt.graph.paths import find_parameter
from fidgpt.graph.provenance import Assignment, Source, attributed_to, why_text
from fidgpt.graph.selectors import find, find_parameters, holds, set_tag, tagged
from fidgpt.graph.walk import Node, clone, clone_part, nodes, parts, title

show_configs()
