"""An HTTP server for translation. Requests that arrive together share a batch of an already compiled shape."""
