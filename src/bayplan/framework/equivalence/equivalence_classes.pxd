cimport cython
from bayplan.framework.api.cycle cimport Cycle as CCycle
from bayplan.framework.equivalence.plugin_evaluation cimport EvaluationClock as CEvaluationClock, Part as CPart
from bayplan.framework.equivalence.class_evaluation cimport Standing as CStanding

cdef class Kind:
    cdef public tuple parts
    cdef public object together, standing_at
    cdef public CEvaluationClock home

cdef class Classes:
    cdef public object _boundary
    cdef public str _name
    cdef public list _roles, _filters, _scores, _parts, _restless, _sitting, _particular
    cdef public dict _quiet_roles, _looks
    cdef public bint _usable
    cdef public Py_ssize_t _limit, _attempt
    cdef public CEvaluationClock _clock
    cdef public object _revision, _standings
    cdef public object long_ways
    cdef public set _complained
    cpdef Kind kind_of(self, object info)
    cpdef CStanding standing(self, CCycle cycle)
    @cython.locals(standing=CStanding, part=CPart)
    cdef CStanding _caught_up(self, Kind kind, CCycle cycle)
    @cython.locals(part=CPart)
    cdef list _sit_out(self, Kind kind, CCycle cycle, dict met)
    cdef CPart _new_part(self, Py_ssize_t number, object kept, CCycle cycle)
