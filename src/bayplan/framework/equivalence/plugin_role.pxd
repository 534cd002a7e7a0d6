cdef class Role:
    cdef public object plugin, name, sits_out, depends_on
    cdef public long long weight
    cdef public bint pre_filters, filters, pre_scores, scores, signs, outside, looks_at_pods, filters_tables, filters_one
    cdef public bint scores_tables, scores_one, wants_rows_left, signs_anew, normalizes, compares, moves, groups, watches, sees_amounts
