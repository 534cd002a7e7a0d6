from bayplan.framework.equivalence.plugin_evaluation cimport Part as CPart, EvaluationClock as CEvaluationClock
from bayplan.framework.equivalence.score_terms cimport Addend as CAddend, Cast as CCast, Spoken as CSpoken
from bayplan.framework.equivalence.weighted_scores cimport Weighted as CWeighted, GroupScores as CGroupScores
from bayplan.framework.equivalence.top_rows cimport Leaders as CLeaders, GroupLeaders as CGroupLeaders
from bayplan.framework.api.cycle cimport Cycle as CCycle
from bayplan.framework.equivalence.plugin_role cimport Role as CRole
from bayplan.snapshot.snapshot cimport Snapshot as CSnapshot
cimport cython
cdef class Standing:
    cdef public CSnapshot snapshot
    cdef public bint was_known, _once
    cdef public CEvaluationClock _clock
    cdef public Py_ssize_t _evaluations, _shifts, _layout, _touched, _renewed
    cdef public list _parts, _filters, _scores, _watching, _steady, _versions, _filter_versions, _asked_by_amounts
    cdef public object feasible, owner
    cdef public object _leaders, _alone, _reasons, _table
    cdef public long long _flat
    cdef public Py_ssize_t candidates
    cdef public dict _told, _by_amounts
    cdef public CCast _cast
    cdef public CSpoken _spoken
    cdef public CCycle _known
    @cython.locals(part=CPart, snapshot=CSnapshot, row=Py_ssize_t)
    cpdef refresh(self)
    @cython.locals(part=CPart)
    cdef bint _asked_in_full(self)
    @cython.locals(part=CPart, cast=CCast, end=Py_ssize_t)
    cdef bint _follow(self, object rows)
    @cython.locals(part=CPart)
    cdef bint _recall(self, CCast cast, object rows, Py_ssize_t end)
    @cython.locals(part=CPart)
    cdef _remember(self, CCast cast, object rows)
    @cython.locals(group_leaders=CGroupLeaders)
    cdef bint _settle(self, CCast cast, object rows)
    cdef _reject_row(self, CCast cast, Py_ssize_t row, list rejecting)
    @cython.locals(addend=CAddend, spoken=CSpoken, before=CWeighted, moved=bint)
    cdef bint _shift(self, CCast cast, bint changed)
    cdef _weigh_anew(self, CCast cast)
    cdef _settle_groups(self, CCast cast, CGroupLeaders leaders, object rows, bint moved)
    cdef CCast _find_cast(self)
    @cython.locals(part=CPart, addend=CAddend)
    cdef _rebuild(self)
    @cython.locals(part=CPart, addend=CAddend)
    cdef _catch_up(self, object rows)
    @cython.locals(part=CPart, snapshot=CSnapshot)
    cdef _mark(self)
    @cython.locals(part=CPart)
    cdef _settle_all(self)
    @cython.locals(part=CPart)
    cdef _weigh(self, CAddend addend)
    @cython.locals(part=CPart)
    cdef bint _weigh_again(self, CAddend addend)
    cdef object _candidates_table(self)
    @cython.locals(part=CPart, addend=CAddend)
    cdef _add_up(self)
    @cython.locals(addend=CAddend)
    cdef _sum(self)
    @cython.locals(part=CPart, addend=CAddend)
    cdef _add_up_rows(self, object rows)
    cpdef lend(self, CCycle cycle)
    cpdef object best_rows(self)
    cpdef list ranking(self, Py_ssize_t first, Py_ssize_t count)
    cdef CSpoken _speaking(self)
    @cython.locals(spoken=CSpoken, groups=CGroupLeaders, row=Py_ssize_t, given=cython.longlong, known=tuple)
    cpdef bytes scores_at(self, list rows)
    cpdef tuple rejections(self)
