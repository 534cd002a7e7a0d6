from bayplan.framework.equivalence.plugin_evaluation cimport PluginEvaluation as CPluginEvaluation, EvaluationCounter as CEvaluationCounter
from bayplan.framework.equivalence.score_terms cimport ScoreTerm as CScoreTerm, IncrementalPlan as CIncrementalPlan, ActiveScoreTerms as CActiveScoreTerms
from bayplan.framework.equivalence.weighted_scores cimport WeightedScores as CWeightedScores, GroupScores as CGroupScores
from bayplan.framework.equivalence.top_rows cimport TopRows as CTopRows, GroupedTopRows as CGroupedTopRows
from bayplan.framework.api.cycle cimport Cycle as CCycle
from bayplan.framework.equivalence.plugin_role cimport PluginRole as CPluginRole
from bayplan.snapshot.snapshot cimport Snapshot as CSnapshot
cimport cython
cdef class ClassEvaluation:
    cdef public CSnapshot snapshot
    cdef public bint was_cached, _single_use
    cdef public CEvaluationCounter _counter
    cdef public Py_ssize_t _counted_evaluations, _shifts, _layout, _touched, _renewed
    cdef public list _plugin_evaluations, _filters, _scores, _with_dependencies, _without_dependencies, _versions, _filter_versions, _amount_inputs
    cdef public object feasible, rejector
    cdef public object _top_rows, _row_local, _reasons, _table
    cdef public long long _constant
    cdef public Py_ssize_t candidates
    cdef public dict _row_results, _scores_by_amounts
    cdef public CIncrementalPlan _plan
    cdef public CActiveScoreTerms _active
    cdef public CCycle _shared_state
    @cython.locals(evaluation=CPluginEvaluation, snapshot=CSnapshot, row=Py_ssize_t)
    cpdef refresh(self)
    @cython.locals(evaluation=CPluginEvaluation)
    cdef bint _was_evaluated_in_full(self)
    @cython.locals(evaluation=CPluginEvaluation, plan=CIncrementalPlan, end=Py_ssize_t)
    cdef bint _update_rows(self, object rows)
    @cython.locals(evaluation=CPluginEvaluation)
    cdef bint _apply_cached_scores(self, CIncrementalPlan plan, object rows, Py_ssize_t end)
    @cython.locals(evaluation=CPluginEvaluation)
    cdef _cache_scores(self, CIncrementalPlan plan, object rows)
    cdef bint _apply_row_results(self, CIncrementalPlan plan, object rows)
    cdef _reject_row(self, CIncrementalPlan plan, Py_ssize_t row, list rejecting)
    @cython.locals(term=CScoreTerm, active=CActiveScoreTerms, before=CWeightedScores, moved=bint)
    cdef bint _apply_normalized_scores(self, CIncrementalPlan plan, bint changed)
    cdef _reweight(self, CIncrementalPlan plan)
    cdef _apply_group_scores(self, CIncrementalPlan plan, CGroupedTopRows top_rows, object rows, bint moved)
    cdef CIncrementalPlan _build_plan(self)
    @cython.locals(evaluation=CPluginEvaluation, term=CScoreTerm)
    cdef _rebuild(self)
    @cython.locals(evaluation=CPluginEvaluation, term=CScoreTerm)
    cdef _update_changed_rows(self, object rows)
    @cython.locals(evaluation=CPluginEvaluation, snapshot=CSnapshot)
    cdef _save_versions(self)
    @cython.locals(evaluation=CPluginEvaluation)
    cdef _merge_all_rows(self)
    @cython.locals(evaluation=CPluginEvaluation)
    cdef _update_term(self, CScoreTerm term)
    @cython.locals(evaluation=CPluginEvaluation)
    cdef bint _update_moved_term(self, CScoreTerm term)
    cdef object _candidates_table(self)
    @cython.locals(evaluation=CPluginEvaluation, term=CScoreTerm)
    cdef _compute_totals(self)
    @cython.locals(term=CScoreTerm)
    cdef _sum_terms(self)
    @cython.locals(evaluation=CPluginEvaluation, term=CScoreTerm)
    cdef _compute_row_totals(self, object rows)
    cpdef lend_state(self, CCycle cycle)
    cpdef object best_rows(self)
    cpdef list ranking(self, Py_ssize_t first, Py_ssize_t count)
    cdef CActiveScoreTerms _active_terms(self)
    @cython.locals(active=CActiveScoreTerms, groups=CGroupedTopRows, row=Py_ssize_t, group_score=cython.longlong, result=tuple)
    cpdef bytes scores_at(self, list rows)
    cpdef tuple rejections(self)
