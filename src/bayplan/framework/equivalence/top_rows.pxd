cimport cython


cdef class Leaders:
    cdef public object total
    cdef public object _best
    cdef public long long _top
    @cython.locals(before=cython.longlong, top=cython.longlong)
    cpdef put(self, Py_ssize_t row, long long total)
    cpdef object best_rows(self)
    cpdef list ranking(self, Py_ssize_t first, Py_ssize_t count)

cdef class _Group:
    cdef public long long members, top, held
    cdef public object rows
    cdef public list merged

cdef class GroupLeaders:
    cdef public object alone, of_row
    cdef public object _best, _total, _group_of
    cdef public object _scores
    cdef public long long _flat
    cdef public dict _groups, _merged
    cpdef weigh(self, object scores, long long flat)
    cpdef long long given_to_group_of(self, Py_ssize_t row)
    @cython.locals(before=cython.longlong, number=cython.longlong, now=cython.longlong)
    cpdef put(self, Py_ssize_t row, long long alone)
    @cython.locals(group=_Group)
    cdef _leave(self, long long number, Py_ssize_t row, long long alone)
    @cython.locals(group=_Group)
    cdef _enter(self, long long number, Py_ssize_t row, long long alone)
    @cython.locals(group=_Group)
    cdef _forget(self, long long number)
    cpdef object best_rows(self)
    @cython.locals(group=_Group, number=cython.longlong, total=cython.longlong, top=cython.longlong, found=list)
    cdef object _find_best(self)
    @cython.locals(group=_Group)
    cdef object _merge(self, tuple tied)
    cdef _look(self, long long number, _Group group)
    @cython.locals(group=_Group)
    cdef object _rows(self, long long number)
    cpdef list ranking(self, Py_ssize_t first, Py_ssize_t count)
