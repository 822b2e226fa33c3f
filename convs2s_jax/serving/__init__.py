"""An HTTP server for translation: requests that arrive together share a batch of a shape that is compiled already."""
