"""What arguments does a plugin take?

Arguments belong to the plugin, which lives on a higher floor; so the loader is handed a table of `ArgsKind`s, one for
each plugin that takes any, and knows nothing of them but what is here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bayplan.config.field_errors import FieldError, FieldPath
from bayplan.config.schema import ConfigStruct


def keep_args(args: Any) -> Any:
    return args


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgsKind:
    """The arguments of one plugin: their struct, what fills the gaps, what makes them valid.

    Field defaults of the struct stand for absent fields; `apply_defaults` is for the rest (a 0 that means 1).
    """

    plugin: str
    struct: type[ConfigStruct]
    apply_defaults: Callable[[Any], Any] = keep_args
    validate: Callable[[Any, FieldPath], list[FieldError]]
    validated_at_load: bool = True
    """kube-scheduler looks NodeResourcesFit up under a wrong name, so only the plugin itself checks its arguments."""

    @property
    def kind(self) -> str:
        return f"{self.plugin}Args"

    def default(self) -> Any:
        return self.apply_defaults(self.struct())


ArgsKinds = Mapping[str, ArgsKind]
"""The table by plugin name."""
