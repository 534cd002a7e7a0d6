"""The expression language of device selectors and of schema rules: CEL as Kubernetes 1.36 runs it.

`DeviceEnvironment.compile` turns a text into an `Expression`; `Expression.evaluate` answers for a `DeviceView`.
"""

from __future__ import annotations

from bayplan.cel.cost import LIMIT as MAX_COST
from bayplan.cel.cost import MAX_LENGTH
from bayplan.cel.device import DeviceEnvironment, Expression
from bayplan.cel.faults import CompileError, EvaluationError
from bayplan.cel.objects import ObjectEnvironment, ObjectExpression
from bayplan.cel.quantities import ParseQuantity, QuantityValue
from bayplan.cel.semver import Semver
from bayplan.cel.views import AttributeValue, DeviceView

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
