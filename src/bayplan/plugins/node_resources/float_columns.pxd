cimport cython
from bayplan.snapshot.columns cimport NodeColumns as CNodeColumns
from bayplan.snapshot.journal cimport ChangeJournal as CChangeJournal
from bayplan.snapshot.snapshot cimport Snapshot as CSnapshot

cdef class SnapshotCursor:
    cdef public object _snapshot
    cdef public Py_ssize_t _layout, _cursor
    @cython.locals(touched=CChangeJournal, row=Py_ssize_t)
    cpdef object changed_rows(self, CSnapshot snapshot)
    cpdef start_over(self)

cdef class MinimumFree:
    cdef public SnapshotCursor _cursor
    cdef public dict _free, _minimum
    @cython.locals(columns=CNodeColumns)
    cpdef follow(self, CSnapshot snapshot)
    cpdef object of(self, CNodeColumns columns, Py_ssize_t number)

cdef class FloatColumns:
    cdef public tuple _sources
    cdef public object _on_change
    cdef public SnapshotCursor _cursor
    cdef public bint _usable
    cdef public object allocatable, requested, free, buffer
    cdef public list _minimum
    cpdef bint fits_everywhere(self, object demand)
    @cython.locals(columns=CNodeColumns)
    cpdef bint follow(self, CSnapshot snapshot)
    cdef _copy_all(self, CNodeColumns columns)
    cdef _copy_rows(self, CNodeColumns columns, object rows)
    cdef _set_free(self, Py_ssize_t index, Py_ssize_t row, double free)
