from bayplan.framework.equivalence.plugin_evaluation cimport PluginEvaluation as CPluginEvaluation
from bayplan.framework.equivalence.plugin_role cimport PluginRole as CPluginRole
from bayplan.framework.equivalence.weighted_scores cimport WeightedScores as CWeightedScores
cimport cython
cdef class ScoreTerm:
    cdef public Py_ssize_t changes
    cdef public CPluginEvaluation evaluation
    cdef public object last_checked_stamp, stamp
    cdef public CWeightedScores weighted
    @cython.locals(evaluation=CPluginEvaluation)
    cpdef bint has_moved(self)
    cpdef object on_rows(self, object rows)
cdef class ActiveScoreTerms:
    cdef public list terms, score_sources, inactive_terms
    cdef public tuple names
    cdef public object _pack
    cpdef long long total_at(self, Py_ssize_t row)
    cpdef bytes pack_row_scores(self, Py_ssize_t row)
cdef class IncrementalPlan:
    cdef public list amount_evaluations, pod_evaluations, row_evaluations, row_local_scores, normalized_terms
    cdef public bint can_update_rows, has_inactive_terms
    @cython.locals(total=cython.longlong, weight=cython.longlong)
    cpdef long long row_local_total(self, Py_ssize_t row)
