"""The scripts that make a shell ask `python -m fidgpt.cli.complete` when somebody presses Tab."""

import shlex
import sys

_ASK = "{python} -P -m fidgpt.cli.complete"

_BASH = """\
# Source this, for example: eval "$(python train.py --completion=bash)"
_fidgpt() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do COMPREPLY+=("$line"); done < <(
        {ask} bash "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null)
}
_fidgpt_python() {
    case "${COMP_LINE:0:COMP_POINT}" in
        *train.py\\ * | *sweep.py\\ * | *-m\\ fidgpt.*\\ *) _fidgpt ;;
        *) [ -z "$_fidgpt_before" ] || "$_fidgpt_before" "$@" ;;
    esac
}
if [ -z "${_fidgpt_before+known}" ]; then
    _fidgpt_before=$(complete -p python 2>/dev/null | sed -n 's/.* -F \\([^ ]*\\) .*/\\1/p')
fi
complete -o nospace -F _fidgpt fidgpt-train fidgpt-sweep fidgpt-sample fidgpt-evaluate fidgpt-export
complete -o nospace -o bashdefault -o default -F _fidgpt_python python python3
"""

_ZSH = """\
# Source this, for example: eval "$(python train.py --completion=zsh)"
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
_fidgpt() {
    local kind text doc
    local -a whole open whole_docs open_docs
    while IFS=$'\\t' read -r kind text doc; do
        if [[ $kind == whole ]]; then
            whole+=("$text") whole_docs+=("$text${doc:+  -- $doc}")
        else
            open+=("$text") open_docs+=("$text${doc:+  -- $doc}")
        fi
    done < <({ask} zsh "$LBUFFER" 2>/dev/null)
    (( $#whole )) && compadd -l -d whole_docs -a whole
    (( $#open )) && compadd -l -S '' -d open_docs -a open
    (( $#whole + $#open )) || _files
}
_fidgpt_python() {
    if [[ $LBUFFER == *(train|sweep).py\\ * || $LBUFFER == *-m\\ fidgpt.*\\ * ]]; then
        _fidgpt
    elif (( $+functions[_python] )) || autoload -Uz +X _python 2>/dev/null; then
        _python "$@"
    else
        _default
    fi
}
compdef _fidgpt fidgpt-train fidgpt-sweep fidgpt-sample fidgpt-evaluate fidgpt-export
compdef _fidgpt_python python python3
"""

_FISH = """\
# Source this, for example: python train.py --completion=fish | source
function __fidgpt
    {ask} fish (commandline -cp | string collect) 2>/dev/null
end
function __fidgpt_is_python_of
    string match -qr '(train|sweep)\\.py |-m fidgpt\\.\\S* ' -- (commandline -cp | string collect)
end
complete -c fidgpt-train -c fidgpt-sweep -c fidgpt-sample -f -a '(__fidgpt)'
complete -c fidgpt-evaluate -c fidgpt-export -f -a '(__fidgpt)'
complete -c python -c python3 -n __fidgpt_is_python_of -f -a '(__fidgpt)'
"""

_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def script(shell: str) -> str:
    """The script of a shell, which asks the Python that runs now."""
    ask = _ASK.replace("{python}", shlex.quote(sys.executable))
    return _SCRIPTS[shell].replace("{ask}", ask)
