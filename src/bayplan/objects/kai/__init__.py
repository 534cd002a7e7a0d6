"""KAI-Scheduler API objects: BindRequest and the annotations of GPU sharing."""
