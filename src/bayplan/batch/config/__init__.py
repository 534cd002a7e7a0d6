"""volcano-scheduler.conf: actions, tiers, plugin arguments, and the switches that fix quirks of Volcano."""
