"""One scheduling session: extension points, statements, opening, closing and commits."""
