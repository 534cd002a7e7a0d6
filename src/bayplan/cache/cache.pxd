cimport cython
from bayplan.snapshot.columns cimport NodeColumns as CNodeColumns
from bayplan.snapshot.journal cimport ChangeJournal as CChangeJournal
from bayplan.snapshot.pods cimport PodColumns as CPodColumns
from bayplan.snapshot.snapshot cimport Snapshot as CSnapshot

cdef class _PodState:
    cdef public object info
    cdef public bint assumed
    cdef public Py_ssize_t images, slot, row, kind, affinity

cdef class _SnapshotProgress:
    cdef object __weakref__
    cdef public object cache
    cdef public Py_ssize_t rows, slots, layout, images
    cdef public list content

cdef class Cache:
    cdef object __weakref__
    cdef public object vocabulary, catalog, volumes, devices
    cdef public object _tree, _images, _progress
    cdef public CNodeColumns _nodes
    cdef public list _slots, _free_slots, _content
    cdef public dict _states, _pods_without_node
    cdef public object _removed_pods
    cdef public CChangeJournal _row_journal, _slot_journal
    cdef public Py_ssize_t assumed_count, _layout, _content_clock
    cpdef assume(self, object info)
    @cython.locals(row=Py_ssize_t, slot=Py_ssize_t, own=CNodeColumns, copies=CNodeColumns, state=_PodState)
    cdef bint _add_one_pod(self, CSnapshot snapshot, _SnapshotProgress progress)
    cdef Py_ssize_t _row(self, str name)
    @cython.locals(row=Py_ssize_t, state=_PodState)
    cdef _count_pod(self, object info, bint assumed)
    @cython.locals(slot=Py_ssize_t)
    cdef _take_slot(self, _PodState state, Py_ssize_t row)
    cdef _free_slot(self, _PodState state)
    cdef _touch(self, Py_ssize_t row)
