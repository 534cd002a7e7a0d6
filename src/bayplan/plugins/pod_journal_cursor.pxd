from bayplan.snapshot.snapshot cimport Snapshot as CSnapshot

cdef class Bookmark:
    cdef public Py_ssize_t layout, renewed, pods
    cdef public object basis
    cpdef list turn(self, CSnapshot snapshot, object basis)
