"""Type unification.

The checker calls it for every argument of every candidate overload. It binds type parameters; a failed attempt leaves
no binding behind because each attempt works on a copy.
"""

from __future__ import annotations

from bayplan.cel.types.types import DYN, CelType, TypeKind

TypeMapping = dict[CelType, CelType]

_SCALARS = frozenset(
    {
        TypeKind.BOOL,
        TypeKind.BYTES,
        TypeKind.DOUBLE,
        TypeKind.INT,
        TypeKind.STRING,
        TypeKind.UINT,
        TypeKind.DURATION,
        TypeKind.TIMESTAMP,
        TypeKind.STRUCT,
    }
)
_NULLABLE = frozenset(
    {TypeKind.OPAQUE, TypeKind.STRUCT, TypeKind.ANY, TypeKind.DURATION, TypeKind.TIMESTAMP, TypeKind.NULL}
)
_COMPOUND = frozenset({TypeKind.OPAQUE, TypeKind.LIST, TypeKind.MAP})


class TypeBindings:
    def __init__(self) -> None:
        self._mapping: TypeMapping = {}

    def fits(self, t1: CelType, t2: CelType) -> bool:
        return self.all_fit([t1], [t2])

    def all_fit(self, l1: list[CelType], l2: list[CelType]) -> bool:
        attempt = dict(self._mapping)
        if not _assignable_all(attempt, l1, l2):
            return False
        self._mapping = attempt
        return True

    def resolve(self, t: CelType, *, free_as_dyn: bool = False) -> CelType:
        return substitute(self._mapping, t, free_as_dyn=free_as_dyn)


def substitute(mapping: TypeMapping, t: CelType, *, free_as_dyn: bool = False) -> CelType:
    """`t` with every bound parameter replaced; free ones stay, or become dyn."""
    bound = mapping.get(t)
    if bound is not None:
        return substitute(mapping, bound, free_as_dyn=free_as_dyn)
    if t.kind is TypeKind.PARAM:
        return DYN if free_as_dyn else t
    if not t.params:
        return t
    params = tuple(substitute(mapping, p, free_as_dyn=free_as_dyn) for p in t.params)
    return t if params == t.params else CelType(t.kind, t.name, params)


def _assignable_all(
    m: TypeMapping, l1: list[CelType] | tuple[CelType, ...], l2: list[CelType] | tuple[CelType, ...]
) -> bool:
    return len(l1) == len(l2) and all(_assignable(m, t1, t2) for t1, t2 in zip(l1, l2, strict=True))


def _assignable(m: TypeMapping, t1: CelType, t2: CelType) -> bool:
    if t2.kind is TypeKind.PARAM:
        valid, bound = _substitutes(m, t1, t2)
        if valid or bound:
            return valid
    if t1.kind is TypeKind.PARAM:
        return _substitutes(m, t2, t1)[0]
    if t1.is_dyn_or_error or t2.is_dyn_or_error:
        return True
    if t1.kind is TypeKind.NULL:
        return t2.kind in _NULLABLE
    if t2.kind is TypeKind.NULL:
        return t1.kind in _NULLABLE
    if t1.kind in _SCALARS:
        return t1 == t2
    if t1.kind is TypeKind.TYPE:
        return t2.kind is TypeKind.TYPE
    return (
        t1.kind in _COMPOUND and t1.kind is t2.kind and t1.name == t2.name and _assignable_all(m, t1.params, t2.params)
    )


def _substitutes(m: TypeMapping, t1: CelType, t2: CelType) -> tuple[bool, bool]:
    """Whether the parameter `t2` may be bound to `t1`, and whether it had a binding already."""
    if t1 == t2:
        return True, True
    bound = m.get(t2)
    if bound is not None:
        if t1 == bound:
            return True, True
        if not _assignable(m, t1, bound):
            return False, True
        general = more_general_type(t1, bound)
        if _occurs_check(m, t2, general):
            m[t2] = general
        return True, True
    if _occurs_check(m, t2, t1):
        m[t2] = t1
        return True, False
    return False, False


def _occurs_check(m: TypeMapping, t: CelType, within: CelType) -> bool:
    """The occurs check: a parameter must not be part of its own binding."""
    if t == within:
        return False
    if within.kind is TypeKind.PARAM:
        bound = m.get(within)
        return bound is None or _occurs_check(m, t, bound)
    return all(_occurs_check(m, t, p) for p in within.params)


def more_general_type(t1: CelType, t2: CelType) -> CelType:
    return t1 if _is_equal_or_less_specific(t1, t2) else t2


def _is_equal_or_less_specific(t1: CelType, t2: CelType) -> bool:
    if t1.is_dyn or t1.kind is TypeKind.PARAM:
        return True
    if t2.is_dyn or t2.kind is TypeKind.PARAM or t1.kind is not t2.kind:
        return False
    if t1.kind is TypeKind.TYPE:
        return True
    if t1.kind in _COMPOUND:
        same_shape = t1.name == t2.name and len(t1.params) == len(t2.params)
        return same_shape and all(
            _is_equal_or_less_specific(p1, p2) for p1, p2 in zip(t1.params, t2.params, strict=True)
        )
    return t1 == t2
