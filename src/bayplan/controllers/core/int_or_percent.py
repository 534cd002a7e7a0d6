"""IntOrString values of rollouts and budgets, rounded as upstream does."""

from __future__ import annotations


def scaled_value(value: int | str | None, total: int, *, round_up: bool) -> int:
    """Number as it is, or percentage of the total such as `25%`; invalid text counts as 0."""
    if isinstance(value, int):
        return value
    digits = (value or "").removesuffix("%")
    if not digits.isascii() or not digits.isdigit():
        return 0
    share = int(digits) * total
    return -(-share // 100) if round_up else share // 100
