cimport cython


cdef class TopRows:
    cdef public object total
    cdef public object _best
    cdef public long long _top
    @cython.locals(before=cython.longlong, top=cython.longlong)
    cpdef set_total(self, Py_ssize_t row, long long total)
    cpdef object best_rows(self)
    cpdef list ranking(self, Py_ssize_t first, Py_ssize_t count)

cdef class _TopGroup:
    cdef public long long members, top, top_count
    cdef public object rows
    cdef public list merged

cdef class GroupedTopRows:
    cdef public object row_local, of_row
    cdef public object _best, _total, _group_of
    cdef public object _scores
    cdef public long long _constant
    cdef public dict _groups, _merged
    cpdef set_group_scores(self, object scores, long long constant)
    cpdef long long group_score(self, Py_ssize_t row)
    @cython.locals(before=cython.longlong, number=cython.longlong, now=cython.longlong)
    cpdef set_total(self, Py_ssize_t row, long long row_local)
    @cython.locals(group=_TopGroup)
    cdef _remove_from_group(self, long long number, Py_ssize_t row, long long row_local)
    @cython.locals(group=_TopGroup)
    cdef _add_to_group(self, long long number, Py_ssize_t row, long long row_local)
    @cython.locals(group=_TopGroup)
    cdef _invalidate_group(self, long long number)
    cpdef object best_rows(self)
    @cython.locals(group=_TopGroup, number=cython.longlong, total=cython.longlong, top=cython.longlong, found=list)
    cdef object _find_best(self)
    @cython.locals(group=_TopGroup)
    cdef object _merge(self, tuple tied)
    cdef _find_group_top(self, long long number, _TopGroup group)
    @cython.locals(group=_TopGroup)
    cdef object _rows(self, long long number)
    cpdef list ranking(self, Py_ssize_t first, Py_ssize_t count)
