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
    cdef public bint was_cached, _once
    cdef public CEvaluationCounter _clock
    cdef public Py_ssize_t _evaluations, _shifts, _layout, _touched, _renewed
    cdef public list _parts, _filters, _scores, _watching, _steady, _versions, _filter_versions, _asked_by_amounts
    cdef public object feasible, owner
    cdef public object _top_rows, _row_local, _reasons, _table
    cdef public long long _constant
    cdef public Py_ssize_t candidates
    cdef public dict _row_results, _by_amounts
    cdef public CIncrementalPlan _plan
    cdef public CActiveScoreTerms _active
    cdef public CCycle _known
    @cython.locals(part=CPluginEvaluation, snapshot=CSnapshot, row=Py_ssize_t)
    cpdef refresh(self)
    @cython.locals(part=CPluginEvaluation)
    cdef bint _was_evaluated_in_full(self)
    @cython.locals(part=CPluginEvaluation, cast=CIncrementalPlan, end=Py_ssize_t)
    cdef bint _update_rows(self, object rows)
    @cython.locals(part=CPluginEvaluation)
    cdef bint _apply_cached_scores(self, CIncrementalPlan cast, object rows, Py_ssize_t end)
    @cython.locals(part=CPluginEvaluation)
    cdef _cache_scores(self, CIncrementalPlan cast, object rows)
    @cython.locals(group_leaders=CGroupedTopRows)
    cdef bint _apply_row_results(self, CIncrementalPlan cast, object rows)
    cdef _reject_row(self, CIncrementalPlan cast, Py_ssize_t row, list rejecting)
    @cython.locals(addend=CScoreTerm, spoken=CActiveScoreTerms, before=CWeightedScores, moved=bint)
    cdef bint _apply_normalized_scores(self, CIncrementalPlan cast, bint changed)
    cdef _reweight(self, CIncrementalPlan cast)
    cdef _apply_group_scores(self, CIncrementalPlan cast, CGroupedTopRows leaders, object rows, bint moved)
    cdef CIncrementalPlan _build_plan(self)
    @cython.locals(part=CPluginEvaluation, addend=CScoreTerm)
    cdef _rebuild(self)
    @cython.locals(part=CPluginEvaluation, addend=CScoreTerm)
    cdef _update_changed_rows(self, object rows)
    @cython.locals(part=CPluginEvaluation, snapshot=CSnapshot)
    cdef _mark(self)
    @cython.locals(part=CPluginEvaluation)
    cdef _merge_all_rows(self)
    @cython.locals(part=CPluginEvaluation)
    cdef _update_term(self, CScoreTerm addend)
    @cython.locals(part=CPluginEvaluation)
    cdef bint _update_moved_term(self, CScoreTerm addend)
    cdef object _candidates_table(self)
    @cython.locals(part=CPluginEvaluation, addend=CScoreTerm)
    cdef _add_up(self)
    @cython.locals(addend=CScoreTerm)
    cdef _sum(self)
    @cython.locals(part=CPluginEvaluation, addend=CScoreTerm)
    cdef _add_up_rows(self, object rows)
    cpdef lend_state(self, CCycle cycle)
    cpdef object best_rows(self)
    cpdef list ranking(self, Py_ssize_t first, Py_ssize_t count)
    cdef CActiveScoreTerms _active_terms(self)
    @cython.locals(spoken=CActiveScoreTerms, groups=CGroupedTopRows, row=Py_ssize_t, given=cython.longlong, known=tuple)
    cpdef bytes scores_at(self, list rows)
    cpdef tuple rejections(self)
