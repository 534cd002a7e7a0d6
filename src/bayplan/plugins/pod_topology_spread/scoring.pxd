cimport cython
from bayplan.plugins.pod_journal_cursor cimport JournalCursor as CJournalCursor
from bayplan.snapshot.snapshot cimport Snapshot as CSnapshot

cdef class HostCount:
    cdef public object constraint, counts
    cdef public double weight
    cpdef shift(self, Py_ssize_t row, long long delta)

cdef class DomainCount:
    cdef public object constraint, counts, ids, included
    cdef public double weight
    @cython.locals(domain=Py_ssize_t)
    cpdef shift(self, Py_ssize_t row, long long delta)

cdef class SoftState:
    cdef public tuple topology_counts
    cdef public bint requires_all, covers_all_rows
    cdef public CJournalCursor cursor
    cdef public object version
    cdef public _ScoreGroups _groups
    cdef public dict _counted
    @cython.locals(changes=list)
    cpdef bint follow(self, CSnapshot snapshot, object basis, object namespace)
    cdef _shift(self, object info, Py_ssize_t row, long long delta)

cdef class _ScoreGroups:
    cdef public list _by_domain, _by_level
    cdef public dict _raw_scores, _population
    cdef public DomainCount _domain
    cdef public HostCount _host
    cdef public object _of_row
    cdef public Py_ssize_t _size
    @cython.locals(levels=Py_ssize_t, total=double, whole_number=cython.longlong)
    cdef long long _raw_score(self, Py_ssize_t group)
    @cython.locals(group=Py_ssize_t)
    cpdef bint shift(self, object topology_count, Py_ssize_t row, long long delta)
    @cython.locals(levels=Py_ssize_t, group=Py_ssize_t)
    cdef _update_domain(self, DomainCount topology_count, Py_ssize_t domain)
    @cython.locals(raw_scores=dict, lowest=cython.longlong, highest=cython.longlong, group=Py_ssize_t, score=cython.longlong, final=list)
    cpdef object scores(self)
