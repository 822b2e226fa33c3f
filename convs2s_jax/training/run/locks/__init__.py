"""One trainer in a workdir: locks of files and of object stores."""
