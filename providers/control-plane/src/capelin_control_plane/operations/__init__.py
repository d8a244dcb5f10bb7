"""Operations that take longer than a reconcile: their phases, their tasks and their exclusion."""
