from bayplan.snapshot.columns cimport NodeColumns as CNodeColumns
from bayplan.snapshot.journal cimport ChangeJournal as CChangeJournal
from bayplan.snapshot.pods cimport PodColumns as CPodColumns

cdef class Snapshot:
    cdef object __weakref__
    cdef public object vocabulary, catalog, order, cache_progress
    cdef public CNodeColumns nodes
    cdef public CPodColumns pods
    cdef public CChangeJournal touched, renewed
    cdef public Py_ssize_t layout
    cdef public object generation
