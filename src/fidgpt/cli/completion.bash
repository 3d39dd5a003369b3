# Source this, for example: eval "$(python train.py --completion=bash)"
_fidgpt() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do COMPREPLY+=("$line"); done < <(
        @ASK@ bash "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null)
}
complete -o nospace -F _fidgpt @PROGRAMS@
complete -o nospace -o bashdefault -o default -F _fidgpt python python3
