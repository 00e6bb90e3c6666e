"""The window: what runs on this machine, as a page in a browser, and the figures that `millrace top` shows too."""
