"""What a run says of itself: metrics, events, logs, trackers, traces, and where its time goes."""
