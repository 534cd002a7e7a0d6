"""Objects as rows of a Table: the columns of a kind and the cells of an object."""

from __future__ import annotations

from bayplan.apiserver.tables.ages import age_cell, format_age
from bayplan.apiserver.tables.kind_columns import cells, columns, row_conditions

__all__ = ["age_cell", "cells", "columns", "format_age", "row_conditions"]
