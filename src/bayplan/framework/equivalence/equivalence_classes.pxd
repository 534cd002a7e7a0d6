cimport cython
from bayplan.framework.api.cycle cimport Cycle as CCycle
from bayplan.framework.equivalence.plugin_evaluation cimport EvaluationCounter as CEvaluationCounter, PluginEvaluation as CPluginEvaluation
from bayplan.framework.equivalence.class_evaluation cimport ClassEvaluation as CClassEvaluation

cdef class EquivalenceClass:
    cdef public tuple evaluation_slots
    cdef public object class_slot, current_slot
    cdef public CEvaluationCounter counter

cdef class EquivalenceClasses:
    cdef public object _caller
    cdef public str _scheduler_name
    cdef public list _roles, _filters, _scores, _evaluation_caches, _changing_signatures, _skipping, _always_signed
    cdef public dict _not_applicable_roles, _templates
    cdef public bint _usable
    cdef public Py_ssize_t _limit, _attempt
    cdef public CEvaluationCounter _counter
    cdef public object _revision, _class_evaluations
    cdef public object full_evaluations
    cdef public set _logged
    cpdef EquivalenceClass class_of(self, object info)
    cpdef CClassEvaluation class_evaluation(self, CCycle cycle)
    @cython.locals(class_evaluation=CClassEvaluation, evaluation=CPluginEvaluation)
    cdef CClassEvaluation _refresh(self, EquivalenceClass pod_class, CCycle cycle)
    @cython.locals(evaluation=CPluginEvaluation)
    cdef list _not_applicable_plugins(self, EquivalenceClass pod_class, CCycle cycle, dict created)
    cdef CPluginEvaluation _new_evaluation(self, Py_ssize_t number, object slot, CCycle cycle)
