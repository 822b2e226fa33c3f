"""What the console entries call: convs2s-train, convs2s-decode and convs2s with its sub-commands."""
