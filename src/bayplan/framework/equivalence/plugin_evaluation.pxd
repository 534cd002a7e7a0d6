from bayplan.framework.equivalence.plugin_role cimport PluginRole as CPluginRole
from bayplan.framework.api.cycle cimport Cycle as CCycle
from bayplan.snapshot.snapshot cimport Snapshot as CSnapshot
from bayplan.snapshot.journal cimport ChangeJournal as CChangeJournal
from bayplan.framework.equivalence.weighted_scores cimport WeightedScores as CWeightedScores
cimport cython
cdef class EvaluationCounter:
    cdef public Py_ssize_t evaluations
cdef class PluginEvaluation:
    cdef public CPluginRole role
    cdef public EvaluationCounter _counter
    cdef public CCycle cycle
    cdef public bint unshared, compares_candidates, scores_row_local, has_filter, rejects, not_applicable, has_score, all_zero, out_of_range
    cdef public object _caller
    cdef public Py_ssize_t version, filter_version, changes
    cdef public object codes, raw
    cdef public list reasons
    cdef public dict _reason_indexes
    cdef public object _stamp, _scores_stamp, _pre_filter_result
    cdef public Py_ssize_t _layout, _cursor
    cdef public tuple _weighted
    cdef public object _weighted_feasible
    @cython.locals(role=CPluginRole, snapshot=CSnapshot, journal=CChangeJournal, end=Py_ssize_t)
    cpdef update(self)
    @cython.locals(role=CPluginRole)
    cpdef bint is_still_not_applicable(self)
    cpdef update_rows(self, object rows, Py_ssize_t start, Py_ssize_t end)
    cpdef set_row_score(self, Py_ssize_t row, long long score, Py_ssize_t start, Py_ssize_t end)
    @cython.locals(role=CPluginRole, cycle=CCycle)
    cpdef evaluate(self, object remaining=*)
    @cython.locals(cycle=CCycle)
    cdef _set_not_applicable(self)
    @cython.locals(role=CPluginRole, snapshot=CSnapshot)
    cdef _save_cursor(self)
    cdef object _depends_on(self)
    cdef _refresh(self, object rows)
    cpdef object scores_stamp(self)
    cdef _update_scores(self)
    cpdef CWeightedScores same_for_any_candidates(self)
    cpdef CWeightedScores reweighted(self, object candidates)
    cpdef CWeightedScores weighted(self, object feasible, object candidates)
    cdef CWeightedScores _compute_weighted(self, object feasible, object candidates)
    cpdef object row_local_scores(self, object feasible)
    cpdef bint pre_score(self, object candidates)
    cdef bint _run_pre_filter(self)
    cpdef object pre_filter(self)
    cpdef object take_pre_filter_result(self)
