# Source this, for example: eval "$(python train.py --completion=zsh)"
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
_fidgpt() {
    local -a found=("${(@f)$(@ASK@ zsh "$LBUFFER" 2>/dev/null)}")
    local -a whole=(${found:#*[=:./[]}) unfinished=(${(M)found:#*[=:./[]})
    (( $#whole )) && compadd -a whole
    (( $#unfinished )) && compadd -S '' -a unfinished
    (( $#found[1] )) || _files
}
_fidgpt_python() {
    if [[ $LBUFFER == *(train|sweep).py\ * || $LBUFFER == *-m\ fidgpt*\ * ]]; then
        _fidgpt
    else
        autoload -Uz +X _python 2>/dev/null && _python "$@" || _default
    fi
}
compdef _fidgpt @PROGRAMS@
compdef _fidgpt_python python python3
