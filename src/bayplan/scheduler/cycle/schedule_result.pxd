from bayplan.framework.api.cycle cimport Cycle as CCycle

cdef class AssumedPod:
    cdef public object framework, pod
    cdef public CCycle cycle

cdef class ScheduleResult:
    cdef public object decision, status, permit_timeouts_s
    cdef public AssumedPod assumed
