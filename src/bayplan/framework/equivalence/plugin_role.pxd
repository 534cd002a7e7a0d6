cdef class PluginRole:
    cdef public object plugin, name, depends_on, scores_depend_on, not_applicable, score_groups
    cdef public long long weight
    cdef public bint pre_filters, filters, pre_scores, scores, has_signature, is_external, looks_at_pods, filters_tables, filters_one
    cdef public bint scores_tables, scores_one, needs_remaining_rows, signature_may_change, normalizes, compares_candidates, checks_dependencies, reads_amounts_only
