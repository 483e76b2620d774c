"""Run replicas on other machines."""
