"""One scheduling session: extension points, statements, opening, closing and what it commits."""
