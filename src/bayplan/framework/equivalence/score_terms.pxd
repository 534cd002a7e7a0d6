from bayplan.framework.equivalence.plugin_evaluation cimport Part as CPart
from bayplan.framework.equivalence.plugin_role cimport Role as CRole
from bayplan.framework.equivalence.weighted_scores cimport Weighted as CWeighted
cimport cython
cdef class Addend:
    cdef public Py_ssize_t changes
    cdef public CPart part
    cdef public object seen, stamp
    cdef public CWeighted weighted
    @cython.locals(part=CPart)
    cpdef bint has_moved(self)
    cpdef object over(self, object rows)
cdef class Spoken:
    cdef public list addends, scores, waiting
    cdef public tuple names
    cdef public object _pack
    cpdef long long total_at(self, Py_ssize_t row)
    cpdef bytes spelled_out(self, Py_ssize_t row)
cdef class Cast:
    cdef public list by_amounts, by_pods, followers, alone, shifting
    cdef public bint simple, waiting
    @cython.locals(total=cython.longlong, weight=cython.longlong)
    cpdef long long alone_at(self, Py_ssize_t row)
