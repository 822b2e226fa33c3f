"""The functions behind the console commands convs2s-train, convs2s-decode and convs2s with its sub-commands."""
