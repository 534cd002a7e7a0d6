from bayplan.framework.equivalence.plugin_role cimport Role as CRole
from bayplan.framework.api.cycle cimport Cycle as CCycle
from bayplan.snapshot.snapshot cimport Snapshot as CSnapshot
from bayplan.snapshot.journal cimport Journal as CJournal
from bayplan.framework.equivalence.weighted_scores cimport Weighted as CWeighted
cimport cython
cdef class EvaluationClock:
    cdef public Py_ssize_t evaluations
cdef class Part:
    cdef public CRole role
    cdef public EvaluationClock _clock
    cdef public CCycle cycle
    cdef public bint own, compares, scores_alone, filtering, rejects, sits_out, scoring, silent, wild
    cdef public object _boundary
    cdef public Py_ssize_t version, filter_version, changes
    cdef public object codes, raw
    cdef public list reasons
    cdef public dict _places
    cdef public object _stamp, _scores_stamp, _answer
    cdef public Py_ssize_t _layout, _cursor
    cdef public tuple _weighted
    cdef public object _weighted_for
    @cython.locals(role=CRole, snapshot=CSnapshot, journal=CJournal, end=Py_ssize_t)
    cpdef catch_up(self)
    @cython.locals(role=CRole)
    cpdef bint still_sits_out(self)
    cpdef follow(self, object rows, Py_ssize_t start, Py_ssize_t end)
    cpdef accept(self, Py_ssize_t row, long long score, Py_ssize_t start, Py_ssize_t end)
    @cython.locals(role=CRole, cycle=CCycle)
    cpdef evaluate(self, object left=*)
    @cython.locals(cycle=CCycle)
    cdef _sit_out(self)
    @cython.locals(role=CRole, snapshot=CSnapshot)
    cdef _mark(self)
    cdef object _depends_on(self)
    cdef _refresh(self, object rows)
    cpdef object scores_stamp(self)
    cdef _catch_up_scores(self)
    cpdef CWeighted same_for_any_candidates(self)
    cpdef CWeighted weighted_again(self, object candidates)
    cpdef CWeighted weighted(self, object feasible, object candidates)
    cdef CWeighted _weigh(self, object feasible, object candidates)
    cpdef object alone(self, object feasible)
    cpdef bint pre_score(self, object candidates)
    cdef bint _pre_filtered(self)
    cpdef object pre_filter(self)
    cpdef object take_answer(self)
