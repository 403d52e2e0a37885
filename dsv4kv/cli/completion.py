"""``dsv4kv completion``: the script by which a shell completes names, keys and files."""

from typing import Annotated, Literal

import typer

from dsv4kv.view.console import say

EPILOG = """\
[bold]Examples[/bold]

dsv4kv completion bash >> ~/.bashrc

dsv4kv completion zsh >> ~/.zshrc

dsv4kv completion fish > ~/.config/fish/completions/dsv4kv.fish
"""

# Bash parts words at = and :, which are in KEY=VALUE and vllm:0.33: the line is parted at spaces
# alone, and of what comes back the part that bash holds already is left out.
_BASH = r"""
_dsv4kv_completion() {
    local line=${COMP_LINE:0:COMP_POINT} IFS=$' \t\n'
    local words=($line) current=${line##*[[:space:]]}
    local count=$(( ${#words[@]} - ($( [[ $current ]] && echo 1 || echo 0 )) ))
    IFS=$'\n'
    COMPREPLY=( $( env COMP_WORDS="$line" COMP_CWORD=$count _DSV4KV_COMPLETE=complete_bash $1 ) )
    local held=${current%"${current##*[=:]}"}
    COMPREPLY=( "${COMPREPLY[@]#"$held"}" )
    [[ ${#COMPREPLY[@]} == 1 && $COMPREPLY == *= ]] && compopt -o nospace
    return 0
}
complete -o default -F _dsv4kv_completion dsv4kv
"""


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="Your shell.")],
) -> None:
    """Print the script that lets a shell complete commands, options, names and settings."""
    from typer._completion_shared import get_completion_script

    script = get_completion_script(
        prog_name="dsv4kv", complete_var="_DSV4KV_COMPLETE", shell=shell
    )
    say((_BASH if shell == "bash" else script).strip())
