"""Shell completion: the script of click for a shell, with where it belongs."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

from whs.errors import UsageError

# Under which a shell asks, while somebody types.
COMPLETE_VARIABLE: Final = "_WHS_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands and options.

    \b
    bash:  whs completion bash > ~/.local/share/bash-completion/completions/whs
    zsh:   whs completion zsh > "${fpath[1]}/_whs"
    fish:  whs completion fish > ~/.config/fish/completions/whs.fish
    """  # noqa: D301 - click wants the character itself
    kind = get_completion_class(shell)
    if kind is None:
        raise UsageError(f"There is no completion for {shell}.")
    click.echo(kind(context.find_root().command, {}, "whs", COMPLETE_VARIABLE).source())
