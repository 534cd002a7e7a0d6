cimport cython
from bayplan.framework.api.cycle cimport Cycle as CCycle
from bayplan.framework.equivalence.plugin_evaluation cimport EvaluationCounter as CEvaluationCounter, PluginEvaluation as CPluginEvaluation
from bayplan.framework.equivalence.class_evaluation cimport ClassEvaluation as CClassEvaluation

cdef class EquivalenceClass:
    cdef public tuple evaluation_slots
    cdef public object class_slot, current_slot
    cdef public CEvaluationCounter owner

cdef class EquivalenceClasses:
    cdef public object _boundary
    cdef public str _name
    cdef public list _roles, _filters, _scores, _parts, _restless, _sitting, _particular
    cdef public dict _quiet_roles, _looks
    cdef public bint _usable
    cdef public Py_ssize_t _limit, _attempt
    cdef public CEvaluationCounter _clock
    cdef public object _revision, _standings
    cdef public object full_evaluations
    cdef public set _complained
    cpdef EquivalenceClass class_of(self, object info)
    cpdef CClassEvaluation class_evaluation(self, CCycle cycle)
    @cython.locals(standing=CClassEvaluation, part=CPluginEvaluation)
    cdef CClassEvaluation _refreshed(self, EquivalenceClass kind, CCycle cycle)
    @cython.locals(part=CPluginEvaluation)
    cdef list _not_applicable_plugins(self, EquivalenceClass kind, CCycle cycle, dict met)
    cdef CPluginEvaluation _new_part(self, Py_ssize_t number, object kept, CCycle cycle)
