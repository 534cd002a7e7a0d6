"""Controller base class, shared informers, owner references and object types that all controllers use."""
