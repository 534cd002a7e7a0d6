"""Controllers of disruption budgets, resource quotas and the objects that every namespace has."""
