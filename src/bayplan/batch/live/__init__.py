"""The batch engine on a cluster: what the API server tells goes in, what sessions decide is written."""
