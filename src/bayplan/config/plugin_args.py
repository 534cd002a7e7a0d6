"""Kinds of plugin arguments.

Arguments belong to the plugins, which are in a higher layer. So the loader gets a table of `ArgsKind`s, one for each
plugin with arguments, and knows nothing else about them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bayplan.codec.field_errors import FieldError, FieldPath
from bayplan.config.schema import ConfigStruct


def keep_args(args: Any) -> Any:
    return args


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgsKind:
    """The arguments of one plugin: struct, defaults and validation.

    Field defaults of the struct stand for absent fields; `apply_defaults` does the rest (a 0 that means 1).
    """

    plugin: str
    struct: type[ConfigStruct]
    apply_defaults: Callable[[Any], Any] = keep_args
    validate: Callable[[Any, FieldPath], list[FieldError]]
    validated_at_load: bool = True
    """kube-scheduler looks NodeResourcesFit up under a wrong name, so only the plugin itself validates its arguments.
    """

    @property
    def kind(self) -> str:
        return f"{self.plugin}Args"

    def default(self) -> Any:
        return self.apply_defaults(self.struct())


ArgsKinds = Mapping[str, ArgsKind]
"""The table by plugin name."""
