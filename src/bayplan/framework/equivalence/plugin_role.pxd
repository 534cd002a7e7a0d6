cdef class PluginRole:
    cdef public object plugin, name, sits_out, depends_on
    cdef public long long weight
    cdef public bint pre_filters, filters, pre_scores, scores, has_signature, is_external, looks_at_pods, filters_tables, filters_one
    cdef public bint scores_tables, scores_one, needs_remaining_rows, signs_anew, normalizes, compares_candidates, has_scores_version, has_score_groups, checks_dependencies, reads_amounts_only
