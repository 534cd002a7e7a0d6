"""CEL as in Kubernetes 1.36: the expression language of device selectors and schema rules.

`DeviceEnvironment.compile` compiles a text to an `Expression`; `Expression.evaluate` evaluates it for a `DeviceView`.
"""

from __future__ import annotations

from bayplan.cel.device_expressions import DeviceEnvironment, Expression
from bayplan.cel.errors import CompileError, EvaluationError
from bayplan.cel.object_expressions import ObjectEnvironment, ObjectExpression
from bayplan.cel.values.cost import LIMIT as MAX_COST
from bayplan.cel.values.cost import MAX_LENGTH
from bayplan.cel.values.device_view import AttributeValue, DeviceView
from bayplan.cel.values.quantities import ParseQuantity, QuantityValue
from bayplan.cel.values.semver import Semver

__all__ = [
    "MAX_COST",
    "MAX_LENGTH",
    "AttributeValue",
    "CompileError",
    "DeviceEnvironment",
    "DeviceView",
    "EvaluationError",
    "Expression",
    "ObjectEnvironment",
    "ObjectExpression",
    "ParseQuantity",
    "QuantityValue",
    "Semver",
]
