"""`bayplan completion`: completion scripts for shells."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print a script that completes commands, options, resource types and object names with the Tab key.

    \b
    Examples:
      source <(bayplan completion bash)
      bayplan completion zsh > "${fpath[1]}/_bayplan"
      bayplan completion fish > ~/.config/fish/completions/bayplan.fish
    """
    root = context.find_root().command
    complete = get_completion_class(shell)
    assert complete is not None
    click.echo(complete(root, {}, "bayplan", "_BAYPLAN_COMPLETE").source())
