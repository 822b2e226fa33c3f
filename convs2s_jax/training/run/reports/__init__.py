"""What a run reports: metrics, events, logs, trackers, traces, and where its time goes."""
