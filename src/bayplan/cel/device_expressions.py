"""Compiles and evaluates device selectors.

The allocator evaluates them for every candidate device. An environment compiles a text once and caches it; evaluating a
common selector takes a few microseconds. The language is cel-go's with the libraries of Kubernetes 1.36.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import Any

from bayplan.cel.checker.checker import NameScope, check_expression
from bayplan.cel.checker.validators import validate_expression
from bayplan.cel.errors import CelError, CompileError, EvaluationAborted, EvaluationError
from bayplan.cel.evaluator.compiler import Program, compile_tree
from bayplan.cel.evaluator.frames import Frame
from bayplan.cel.libraries import functions
from bayplan.cel.parser.parser import parse
from bayplan.cel.parser.source import ExpressionSource
from bayplan.cel.types.types import (
    ANY,
    BOOL,
    BYTES,
    CIDR,
    DEVICE,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    IP,
    NULL,
    QUANTITY,
    STRING,
    TIMESTAMP,
    TYPE,
    UINT,
    CelType,
    TypeKind,
    full_name,
    list_of,
    map_of,
    opaque,
    param,
    type_of_type,
)
from bayplan.cel.values.device_view import DeviceView
from bayplan.cel.values.quantities import ParseQuantity
from bayplan.cel.values.values import type_name

CACHE_SIZE = 1024

TYPE_NAMES: dict[str, CelType] = {
    t.name: type_of_type(t) for t in (BOOL, BYTES, DOUBLE, DURATION, INT, NULL, STRING, TIMESTAMP, TYPE, UINT, IP, CIDR)
}
TYPE_NAMES["list"] = type_of_type(list_of(param("A")))
TYPE_NAMES["map"] = type_of_type(map_of(param("A"), param("B")))
TYPE_NAMES["optional_type"] = type_of_type(opaque("optional_type"))


def _names(attribute: CelType) -> NameScope:
    fields = {
        "driver": STRING,
        "allowMultipleAllocations": BOOL,
        "attributes": map_of(STRING, map_of(STRING, attribute)),
        "capacity": map_of(STRING, map_of(STRING, QUANTITY)),
    }
    return NameScope({**TYPE_NAMES, "device": DEVICE}, {DEVICE.name: fields})


class Expression:
    """A compiled selector; immutable, so it can be shared."""

    __slots__ = ("_program", "text")

    def __init__(self, text: str, program: Program) -> None:
        self.text = text
        self._program = program

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def evaluate(self, device: DeviceView) -> bool:
        """Whether the device is selected; raises `EvaluationError` if the evaluation fails."""
        result = self._program.evaluate(device)
        if type(result) is not bool:
            raise EvaluationError(_conversion_error(result))
        return result

    def cost(self, device: DeviceView) -> int:
        """The cost of an evaluation in upstream's units, also if the evaluation fails."""
        frame = Frame(device, self._program.slots)
        with suppress(CelError, EvaluationAborted):
            self._program.run(frame)
        return frame.cost


_CONVERSIONS = {
    "string": "unsupported native conversion from string to 'bool'",
    "int": "unsupported type conversion from 'int' to bool",
    "uint": "unsupported type conversion from 'uint' to bool",
    "double": "type conversion error from Double to 'bool'",
    "bytes": "type conversion error from Bytes to 'bool'",
    "list": "type conversion error from list to 'bool'",
    "map": "type conversion error from map to 'bool'",
    "null_type": "type conversion error from 'null_type' to 'bool'",
    "type": "type conversion not supported for 'type'",
}


def _conversion_error(result: Any) -> str:
    name = type_name(result)
    reason = _CONVERSIONS.get(name) or f"type conversion error from '{name.rpartition('.')[2]}' to 'bool'"
    return f"CEL result of type {name} could not be converted to bool: {reason}"


class DeviceEnvironment:
    """Compiles selectors. `list_attributes` is the DRAListTypeAttributes feature."""

    def __init__(self, *, parse_quantity: ParseQuantity, list_attributes: bool = False) -> None:
        self._functions = functions(parse_quantity)
        self._names = _names(DYN if list_attributes else ANY)
        self._allowed = (BOOL, ANY, DYN) if list_attributes else (BOOL, ANY)
        self._type_names = frozenset(n for n, t in self._names.variables.items() if t.kind is TypeKind.TYPE)
        # Errors are cached too: an invalid selector is evaluated as often as a valid one.
        self._remembered = lru_cache(maxsize=CACHE_SIZE)(self._compile_checked)

    def compile(self, text: str) -> Expression:
        """The expression; raises `CompileError`."""
        outcome = self._remembered(text)
        if isinstance(outcome, CompileError):
            raise CompileError(str(outcome))
        return outcome

    def _compile_checked(self, text: str) -> Expression | CompileError:
        try:
            return self._compile(text)
        except CompileError as error:
            return error
        except RecursionError:
            return CompileError("compilation failed: ERROR: <input>:-1:0: max recursion depth exceeded")

    def _compile(self, text: str) -> Expression:
        source = ExpressionSource(text)
        checked = check_expression(parse(source), source, self._names, self._functions)
        source.check()
        validate_expression(checked, source)
        source.check()
        if checked.result not in self._allowed:
            raise CompileError(f"must evaluate to bool or the unknown type, not {full_name(checked.result)}")
        return Expression(text, compile_tree(checked, self._functions, self._type_names))
