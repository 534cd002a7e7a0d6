"""The drf plugin: dominant resource fairness among jobs and, with a hierarchy, among queues."""
