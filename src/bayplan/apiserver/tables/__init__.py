"""Objects as rows of a Table: which columns a kind has, and what stands in them."""

from __future__ import annotations

from bayplan.apiserver.tables.ages import age, age_of
from bayplan.apiserver.tables.kind_columns import cells, columns, row_conditions

__all__ = ["age", "age_of", "cells", "columns", "row_conditions"]
