# Source this, for example: python train.py --completion=fish | source
function __fidgpt
    @ASK@ fish (commandline -cp | string collect) 2>/dev/null
end
function __fidgpt_is_python_of
    string match -qr '(train|sweep)\.py |-m fidgpt\S* ' -- (commandline -cp | string collect)
end
for program in @PROGRAMS@
    complete -c $program -f -a '(__fidgpt)'
end
complete -c python -c python3 -n __fidgpt_is_python_of -f -a '(__fidgpt)'
