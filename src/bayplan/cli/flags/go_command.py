"""A click command with kube-scheduler's flags: the flag syntax of Go, and Go's messages for wrong flags.

Supports `--flag` and `--flag=false` for switches, `_` for `-`, `-v=2`, and lists with commas that may be repeated.
Arguments that are not flags, and unknown flags, are refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click

from bayplan.codec.go_flags import go_bool
from bayplan.errors import UsageError

Reader = Callable[[str], Any]
"""Parses the text of a flag, or raises `ValueError` with Go's message."""


IGNORED_SECTION = "Accepted, without effect in Bayplan"
"""The section of flags that manifests of upstream contain and that have no effect."""

IGNORED_CHART_WORDS = ("2>&1",)
"""Words between the flags of Volcano's chart, which are meant for a shell. Volcano's programs ignore any word."""


class FlagError(UsageError):
    """An invalid flag. kube-scheduler exits with 1 for it."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Flag:
    name: str
    read: Reader
    default: Any
    help: str
    section: str = ""
    repeatable: bool = False  # several texts make one list
    short: str = ""
    displayed_default: str = ""  # the default in help texts, if it differs
    bare: bool = False  # a list that is written without brackets

    @property
    def is_switch(self) -> bool:
        return self.read is go_bool

    def option(self) -> click.Option:
        default = self.displayed_default or _text(self.default)
        note = f"{self.help} [{default}]" if default else self.help
        names = [f"-{self.short}", f"--{self.name}"] if self.short else [f"--{self.name}"]
        return click.Option(
            [*names, self.name.replace("-", "_")],
            type=_FlagValueType(self),
            help=note,
            metavar="BOOL" if self.is_switch else None,
            multiple=self.repeatable,
        )

    def value(self, given: Any) -> Any:
        """The effective value: the given one, or the default."""
        if not self.repeatable:
            return self.default if given is None else given
        return tuple(item for each in given for item in each) if given else self.default

    def text(self, given: Any) -> str:
        value = self.value(given)
        if value is None:
            return self.displayed_default
        return f"[{_text(value)}]" if self.repeatable and not self.bare else _text(value)


class _FlagValueType(click.ParamType[Any]):
    name = "text"

    def __init__(self, flag: Flag) -> None:
        self._flag = flag

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002
        if not isinstance(value, str):
            return value
        flag = self._flag
        try:
            return flag.read(value)
        except ValueError as fault:
            name = f"-{flag.short}, --{flag.name}" if flag.short else f"--{flag.name}"
            raise FlagError(f'invalid argument "{value}" for "{name}" flag: {fault}') from None


class GoCommand(click.Command):
    """A command with `Flag`s."""

    def __init__(
        self,
        *args: Any,
        flags: Sequence[Flag],
        ignored: Collection[str] = (),
        options_section: str = "Bayplan's own",
        suggests: bool = False,
        **more: Any,
    ) -> None:
        """`ignored`: words that are skipped. `options_section`: the help section of options that are not a `Flag`.
        `suggests`: a wrong flag is a usage error with advice and exit code 2, as in Bayplan's own commands, instead of
        kube-scheduler's error."""
        super().__init__(*args, **more)
        self._suggests = suggests
        self.flags, self._ignored, self._options_section = flags, ignored, options_section
        self.params = [*(flag.option() for flag in flags), *self.params]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return self._parse_with_advice(ctx, args)
        except FlagError as fault:
            raise (UsageError(str(fault)) if self._suggests else fault) from None

    def _parse_with_advice(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_extra_args = True
        words = [arg for arg in args if arg not in self._ignored]
        try:
            rest = super().parse_args(ctx, list(self._to_click_arguments(words)))
        except click.NoSuchOption as fault:
            if self._suggests:
                near = f"did you mean {fault.possibilities[0]}?" if fault.possibilities else "leave it out."
                message = f"unknown flag: {fault.option_name}; {near} See bayplan {self.name} --help"
                raise UsageError(message) from None
            raise FlagError(f"unknown flag: {fault.option_name}") from None
        if any(ctx.args) and not isinstance(self, click.Group):
            raise FlagError(f'"{ctx.command_path}" does not take any arguments, got {json.dumps(ctx.args)}')
        return rest

    def _to_click_arguments(self, args: Iterable[str]) -> Iterator[str]:
        """Add the values that Go lets users leave out. The word after a switch is never its value."""
        switches = {flag.name for flag in self.flags if flag.is_switch}
        ours = {name for option in self.params for name in option.opts if getattr(option, "is_flag", False)}
        waiting = iter(args)
        for arg in waiting:
            if arg == "--":
                yield arg
                yield from waiting
                return
            name, equals, value = arg.partition("=")
            if name.startswith("--"):
                name = f"--{name[2:].replace('_', '-')}"
                if name[2:] in switches and not equals:
                    yield f"{name}=true"
                    continue
                yield f"{name}{equals}{value}"
            elif isinstance(self, click.Group) and not name.startswith("-"):
                yield arg
                yield from waiting  # a subcommand and its arguments
                return
            else:
                yield f"{name}{value}" if equals and name.startswith("-") else arg
            takes_next = arg.startswith("-") and len(arg) > 1 and not equals and name not in ours
            if takes_next and (name.startswith("--") or len(arg) == 2) and name not in ("--help", "-h"):
                yield from _take_next(waiting)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        section_names = {flag.name.replace("-", "_"): flag.section for flag in self.flags}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                sections.setdefault(section_names.get(param.name or "", self._options_section), []).append(record)
        for section, records in sections.items():
            with formatter.section(section):
                formatter.write_dl(records)

    def values(self, given: dict[str, Any]) -> dict[str, Any]:
        """The values of all flags by name, without other options."""
        return {flag.name: flag.value(given[flag.name.replace("-", "_")]) for flag in self.flags}

    def ignored_flags(self, given: dict[str, Any]) -> list[str]:
        """The names of the given flags that have no effect."""
        unused = (flag.name for flag in self.flags if flag.section == IGNORED_SECTION)
        return [name for name in unused if given[name.replace("-", "_")] not in (None, ())]

    def texts(self, given: dict[str, Any]) -> dict[str, str]:
        """The same as texts in Go's format: defaults included, lists in brackets."""
        return {flag.name: flag.text(given[flag.name.replace("-", "_")]) for flag in self.flags}


class GoGroup(GoCommand, click.Group):
    """A group with `Flag`s; its subcommands parse their own arguments."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def _take_next(waiting: Iterator[str]) -> Iterator[str]:
    following = next(waiting, None)
    if following is not None:
        yield following


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join("=".join(each) if isinstance(each, tuple) else str(each) for each in value)
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value is None else str(value)
