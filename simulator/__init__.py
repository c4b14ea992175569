"""Token-level discrete-event simulation of vLLM replicas and fleets."""
