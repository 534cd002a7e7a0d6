from bayplan.snapshot.snapshot cimport Snapshot as CSnapshot

cdef class JournalCursor:
    cdef public Py_ssize_t layout, renewed, pods
    cdef public object basis
    cpdef list changes_since(self, CSnapshot snapshot, object basis)
