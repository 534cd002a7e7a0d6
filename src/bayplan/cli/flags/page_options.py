"""The option for the page, of every command that runs a scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from bayplan.config.bayplan_settings import BayplanSettings

F = TypeVar("F", bound=Callable[..., Any])


def page_option(default: str = "") -> Callable[[F], F]:
    """`--page-address`."""
    return click.option(
        "--page-address",
        default=default,
        show_default=default or "none",
        metavar="HOST:PORT",
        help="Serve the page on this loopback address, to all users of the machine. Port 0: a free port.",
    )


def with_page_address(settings: BayplanSettings, address: str) -> BayplanSettings:
    """The settings with the address of the flag, which overrides the file."""
    from msgspec.structs import replace

    return replace(settings, page_address=address) if address else settings
