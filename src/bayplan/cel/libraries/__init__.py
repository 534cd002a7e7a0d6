"""Function libraries of the device environment.

There is one module per library; `overloads` lists all of them in the order in which cel-go declares them.
"""

from __future__ import annotations

from bayplan.cel.libraries import (
    authorizer,
    conversions,
    formats,
    lists,
    networks,
    optionals,
    quantities,
    regexes,
    semvers,
    sets,
    standard,
    string_format,
    strings,
    times,
    urls,
)
from bayplan.cel.types.declarations import Functions, Overload
from bayplan.cel.values.quantities import ParseQuantity


def functions(parse_quantity: ParseQuantity) -> Functions:
    """The table of `k8s.io/dynamic-resource-allocation` 0.36; `parse_quantity` parses quantities."""
    overloads: list[Overload] = [
        *standard.OVERLOADS,
        *conversions.OVERLOADS,
        *times.OVERLOADS,
        *urls.OVERLOADS,
        *regexes.OVERLOADS,
        *lists.KUBERNETES,
        *authorizer.OVERLOADS,
        *optionals.OVERLOADS,
        *quantities.overloads(parse_quantity),
        *strings.OVERLOADS,
        *string_format.OVERLOADS,
        *sets.OVERLOADS,
        *networks.OVERLOADS,
        *formats.OVERLOADS,
        *semvers.OVERLOADS,
        *lists.EXTENSION,
    ]
    return Functions(overloads, standard.SINGLETONS | conversions.SINGLETONS | lists.SINGLETONS)
