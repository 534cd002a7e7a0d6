"""Commands that run until they are stopped: schedulers, binder, controllers, webhooks and the fake kubelet."""
