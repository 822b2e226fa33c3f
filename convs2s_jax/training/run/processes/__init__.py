"""Several processes in one training: how they find each other, agree, and notice a signal or a loss."""
