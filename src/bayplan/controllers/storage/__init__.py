"""PersistentVolume binder and the protection of claims and volumes in use."""
